# The first root, which wraps tenant keys. Each month the service makes the next key, moves the alias to it and schedules
# this one for deletion (docs/kms.md), so that a destroyed key is final when the last root that could open it is gone. After
# the first turn take the key out of the state: terraform state rm aws_kms_key.root

data "aws_caller_identity" "current" {}

data "aws_region" "current" {}

data "aws_iam_policy_document" "root_key" {
  statement {
    sid       = "AccountAdministers"
    actions   = ["kms:*"]
    resources = ["*"]
    principals {
      type        = "AWS"
      identifiers = ["arn:aws:iam::${data.aws_caller_identity.current.account_id}:root"]
    }
  }

  statement {
    sid       = "AuditorNeverDecrypts"
    effect    = "Deny"
    actions   = ["kms:Decrypt", "kms:GenerateDataKey*", "kms:ReEncrypt*", "kms:ScheduleKeyDeletion"]
    resources = ["*"]
    principals {
      type        = "AWS"
      identifiers = [aws_iam_role.auditor.arn]
    }
  }
}

resource "aws_kms_key" "root" {
  description             = "${var.name}: wraps the tenants' key-encryption keys"
  enable_key_rotation     = false # rotation inside a key is no turn: AWS keeps all earlier bytes
  deletion_window_in_days = var.kms_deletion_window_days
  policy                  = data.aws_iam_policy_document.root_key.json
  tags                    = { muniment-root = var.name } # later keys inherit it, and the role's rights go by it
}

resource "aws_kms_alias" "root" {
  name          = "alias/${var.name}-root"
  target_key_id = aws_kms_key.root.key_id

  lifecycle {
    ignore_changes = [target_key_id] # the service moves it
  }
}

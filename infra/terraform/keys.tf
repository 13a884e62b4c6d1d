# The root that wraps tenant keys. AWS rotates its material; the service also turns its own root monthly, so that a
# destroyed key is final when the last root that could open it is gone.

data "aws_caller_identity" "current" {}

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
  enable_key_rotation     = true
  deletion_window_in_days = var.kms_deletion_window_days
  policy                  = data.aws_iam_policy_document.root_key.json
}

resource "aws_kms_alias" "root" {
  name          = "alias/${var.name}-root"
  target_key_id = aws_kms_key.root.key_id
}

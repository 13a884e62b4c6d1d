# Two roles. The server writes and decrypts but can neither bypass a lock nor end one early; the auditor reads what is
# committed and can open nothing.

data "aws_iam_policy_document" "assume_server" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "AWS"
      identifiers = var.server_principals
    }
  }
}

data "aws_iam_policy_document" "assume_auditor" {
  statement {
    actions = ["sts:AssumeRole"]
    principals {
      type        = "AWS"
      identifiers = length(var.auditor_principals) > 0 ? var.auditor_principals : [data.aws_caller_identity.current.arn]
    }
  }
}

resource "aws_iam_role" "server" {
  name               = "${var.name}-server"
  assume_role_policy = data.aws_iam_policy_document.assume_server.json
}

resource "aws_iam_role" "auditor" {
  name               = "${var.name}-auditor"
  assume_role_policy = data.aws_iam_policy_document.assume_auditor.json
}

data "aws_iam_policy_document" "server" {
  statement {
    sid = "Buckets"
    actions = [
      "s3:GetBucketObjectLockConfiguration",
      "s3:GetBucketVersioning",
      "s3:ListBucket",
      "s3:ListBucketVersions",
    ]
    resources = [aws_s3_bucket.record.arn, aws_s3_bucket.hot.arn]
  }

  statement {
    # DeleteObjectVersion works only when the lock is over: that is how expired ciphertext goes.
    sid = "Record"
    actions = [
      "s3:DeleteObject",
      "s3:DeleteObjectVersion",
      "s3:GetObject",
      "s3:GetObjectLegalHold",
      "s3:GetObjectRetention",
      "s3:GetObjectVersion",
      "s3:PutObject",
      "s3:PutObjectLegalHold",
      "s3:PutObjectRetention",
    ]
    resources = ["${aws_s3_bucket.record.arn}/*"]
  }

  statement {
    sid       = "Hot"
    actions   = ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
    resources = ["${aws_s3_bucket.hot.arn}/*"]
  }

  # The root of each month, told by its tag.
  statement {
    sid = "RootKeys"
    actions = [
      "kms:Decrypt",
      "kms:DescribeKey",
      "kms:Encrypt",
      "kms:GetKeyPolicy",
      "kms:ListResourceTags",
      "kms:ScheduleKeyDeletion",
      "kms:UpdateAlias",
    ]
    resources = ["arn:aws:kms:*:${data.aws_caller_identity.current.account_id}:key/*"]
    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/muniment-root"
      values   = [var.name]
    }
  }

  statement {
    sid       = "Alias"
    actions   = ["kms:UpdateAlias"]
    resources = [aws_kms_alias.root.arn]
  }

  statement {
    sid       = "NextRootKey"
    actions   = ["kms:CreateKey", "kms:TagResource"]
    resources = ["*"]
    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/muniment-root"
      values   = [var.name]
    }
  }

  # A deletion that is taken back would open what was destroyed.
  statement {
    sid       = "NoKeyComesBack"
    effect    = "Deny"
    actions   = ["kms:CancelKeyDeletion"]
    resources = ["*"]
  }
}

resource "aws_iam_role_policy" "server" {
  name   = "record"
  role   = aws_iam_role.server.id
  policy = data.aws_iam_policy_document.server.json
}

data "aws_iam_policy_document" "auditor" {
  statement {
    actions   = ["s3:ListBucket", "s3:ListBucketVersions", "s3:GetBucketObjectLockConfiguration"]
    resources = [aws_s3_bucket.record.arn]
  }

  statement {
    actions   = ["s3:GetObject", "s3:GetObjectRetention", "s3:GetObjectVersion"]
    resources = ["${aws_s3_bucket.record.arn}/*"]
  }
}

resource "aws_iam_role_policy" "auditor" {
  name   = "read-record"
  role   = aws_iam_role.auditor.id
  policy = data.aws_iam_policy_document.auditor.json
}

# record: locked. Payload, batches, checkpoints, certificates. No default retention: the writer states mode and date on
# every PUT, and a default would lock what must stay deletable. hot: not locked. Wrapped keys, exports, snapshots: what
# has to be able to go.

resource "aws_s3_bucket" "record" {
  bucket_prefix       = "${var.name}-record-"
  object_lock_enabled = true

  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_s3_bucket" "hot" {
  bucket_prefix = "${var.name}-hot-"
}

resource "aws_s3_bucket_versioning" "record" {
  bucket = aws_s3_bucket.record.id
  versioning_configuration {
    status = "Enabled" # Object Lock needs it
  }
}

# hot is never versioned: an older version of a wrapped key would be a backup of an erased key.

resource "aws_s3_bucket_public_access_block" "all" {
  for_each                = { record = aws_s3_bucket.record.id, hot = aws_s3_bucket.hot.id }
  bucket                  = each.value
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "all" {
  for_each = { record = aws_s3_bucket.record.id, hot = aws_s3_bucket.hot.id }
  bucket   = each.value
  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "all" {
  for_each = { record = aws_s3_bucket.record.id, hot = aws_s3_bucket.hot.id }
  bucket   = each.value
  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256" # a second layer only; the keys that matter are the service's own
    }
  }
}

# Only uploads that broke off are tidied. Expiry is the service's decision, never a lifecycle rule's.
resource "aws_s3_bucket_lifecycle_configuration" "all" {
  for_each = { record = aws_s3_bucket.record.id, hot = aws_s3_bucket.hot.id }
  bucket   = each.value
  rule {
    id     = "abort-incomplete"
    status = "Enabled"
    filter {}
    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }
}

resource "aws_s3_bucket_logging" "record" {
  count         = var.access_log_bucket == "" ? 0 : 1
  bucket        = aws_s3_bucket.record.id
  target_bucket = var.access_log_bucket
  target_prefix = "${var.name}/record/"
}

data "aws_iam_policy_document" "bucket" {
  for_each = { record = aws_s3_bucket.record.arn, hot = aws_s3_bucket.hot.arn }

  statement {
    sid       = "OnlyTls"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [each.value, "${each.value}/*"]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }

  dynamic "statement" {
    for_each = each.key == "record" ? [1] : []
    content {
      sid    = "NobodyBypassesALockOrWeakensTheBucket"
      effect = "Deny"
      actions = [
        "s3:BypassGovernanceRetention",
        "s3:DeleteBucket",
        "s3:PutBucketObjectLockConfiguration",
        "s3:PutBucketVersioning",
      ]
      resources = [each.value, "${each.value}/*"]
      principals {
        type        = "AWS"
        identifiers = [aws_iam_role.server.arn, aws_iam_role.auditor.arn]
      }
    }
  }
}

resource "aws_s3_bucket_policy" "all" {
  for_each = { record = aws_s3_bucket.record.id, hot = aws_s3_bucket.hot.id }
  bucket   = each.value
  policy   = data.aws_iam_policy_document.bucket[each.key].json
}

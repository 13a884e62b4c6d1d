output "settings" {
  description = "What the server wants in its environment."
  value = {
    MUNIMENT_OBJECT_STORE = "s3://${aws_s3_bucket.record.bucket}/log"
    MUNIMENT_HOT_STORE    = "s3://${aws_s3_bucket.hot.bucket}/hot"
    MUNIMENT_KMS          = "aws-kms://${aws_kms_alias.root.name}?region=${data.aws_region.current.name}&window=${var.kms_deletion_window_days}"
  }
}

output "server_role_arn" {
  value = aws_iam_role.server.arn
}

output "auditor_role_arn" {
  value = aws_iam_role.auditor.arn
}

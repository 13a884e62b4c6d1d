variable "name" {
  description = "Prefix of every resource."
  type        = string
  default     = "muniment"
}

variable "server_principals" {
  description = "ARNs that may assume the server's role (an ECS task role, an EKS service account's role)."
  type        = list(string)
}

variable "auditor_principals" {
  description = "ARNs that may read the record without being able to write or decrypt it."
  type        = list(string)
  default     = []
}

variable "kms_deletion_window_days" {
  description = "How long AWS keeps a scheduled root key, 7 to 30 days. Certificates print it as residual."
  type        = number
  default     = 7

  validation {
    condition     = var.kms_deletion_window_days >= 7 && var.kms_deletion_window_days <= 30
    error_message = "AWS accepts 7 to 30 days."
  }
}

variable "access_log_bucket" {
  description = "Bucket that receives the access logs of the record; empty for none. Object names hold no personal data."
  type        = string
  default     = ""
}

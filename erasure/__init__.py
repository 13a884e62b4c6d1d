"""Rights requests from receipt to certificate: plan, execution, confirmation and the evidence of it."""

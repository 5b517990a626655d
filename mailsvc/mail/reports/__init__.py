"""Mail about mail: delivery status notifications, bounces without a standard, abuse reports and automatic replies. Pure."""

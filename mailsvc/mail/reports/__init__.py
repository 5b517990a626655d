"""Mail about mail: delivery status notifications, non-standard bounces, abuse reports, automatic replies, DMARC and TLS reports. Pure.

`dsn` and `tls_report_mail` compose mail, `tls_report` reads and writes reports. The other modules only read. For bounces, `report` splits a
mail into parts, and `dsn_reader`, `text_bounce`, `ses`, `forwarded`, `feedback` and `auto_reply` recognize what it is; what follows from
that: bounces/reading. For DMARC and TLS reports, `attached` finds the file, `aggregate` and `tls_report` read it; what follows: reports/.
"""

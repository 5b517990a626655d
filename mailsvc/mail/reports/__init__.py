"""Mail about mail: delivery status notifications, non-standard bounces, abuse reports and automatic replies. Pure.

`dsn` composes notifications. The other modules read mail: `report` splits it into parts, and `dsn_reader`, `text_bounce`, `feedback`
and `auto_reply` recognize what it is. What follows from that: bounces/reading.
"""

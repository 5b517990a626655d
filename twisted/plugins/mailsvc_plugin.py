"""Announces `mailsvc` to twistd; mailsvc/tap.py says what it is made of."""

from twisted.application.service import ServiceMaker

mailsvc = ServiceMaker("mailsvc", "mailsvc.tap", "Transactional email delivery service.", "mailsvc")

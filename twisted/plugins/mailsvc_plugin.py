"""Registers `mailsvc` with twistd. The service itself: mailsvc/tap.py."""

from twisted.application.service import ServiceMaker

mailsvc = ServiceMaker("mailsvc", "mailsvc.tap", "Transactional email delivery service.", "mailsvc")

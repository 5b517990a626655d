-- DMARC and TLS reports about sending domains, and which TLS reports were sent to other domains.
-- depends: 0030_sources

-- A report that was read; its rows are in the two tables below.
CREATE TABLE received_reports (
    account_id   uuid NOT NULL,
    domain_id    uuid NOT NULL,
    kind         text COLLATE "C" NOT NULL,                   -- dmarc, tls
    reporter     text COLLATE "C" NOT NULL,                   -- the organization, as the report names it
    report_id    text COLLATE "C" NOT NULL,
    received_on  date NOT NULL,                               -- UTC
    begins_at    timestamptz NOT NULL,                        -- the period of the report
    ends_at      timestamptz NOT NULL,
    row_count    integer NOT NULL,                            -- rows that it added
    PRIMARY KEY (account_id, domain_id, kind, reporter, report_id)
);
CREATE INDEX received_reports_day ON received_reports (received_on, account_id, domain_id);

-- What receivers saw of a domain's mail, by day (UTC, when the period began), source and result (RFC 7489 Appendix C).
CREATE TABLE dmarc_results (
    account_id   uuid NOT NULL,
    domain_id    uuid NOT NULL,
    day          date NOT NULL,
    reporter     text COLLATE "C" NOT NULL,
    source       text COLLATE "C" NOT NULL,                   -- IP address; empty: sources that were not kept
    header_from  text COLLATE "C" NOT NULL,
    disposition  text COLLATE "C" NOT NULL,                   -- none, quarantine, reject
    dkim         boolean NOT NULL,                            -- passed for the domain in From
    spf          boolean NOT NULL,
    signed_by    text COLLATE "C" NOT NULL,                   -- the domain of a DKIM signature; empty: unknown
    mail_from    text COLLATE "C" NOT NULL,                   -- the domain of the envelope sender; empty: unknown
    ours         boolean NOT NULL,                            -- the source is one of this service
    messages     bigint NOT NULL,
    PRIMARY KEY (account_id, domain_id, day, reporter, source, header_from, disposition, dkim, spf, signed_by, mail_from)
);
CREATE INDEX dmarc_results_day ON dmarc_results (day);

-- What senders report about TLS connections to a domain's mail servers, by day (RFC 8460 §4.4).
CREATE TABLE received_tls_results (
    account_id   uuid NOT NULL,
    domain_id    uuid NOT NULL,
    day          date NOT NULL,
    reporter     text COLLATE "C" NOT NULL,
    policy_domain text COLLATE "C" NOT NULL,
    policy       text COLLATE "C" NOT NULL,                   -- sts, tlsa, no-policy-found
    host         text COLLATE "C" NOT NULL,                   -- the mail server; empty: unknown
    result       text COLLATE "C" NOT NULL,                   -- success, or a result type of RFC 8460 §4.3
    sessions     bigint NOT NULL,
    PRIMARY KEY (account_id, domain_id, day, reporter, policy_domain, policy, host, result)
);
CREATE INDEX received_tls_results_day ON received_tls_results (day);

-- The TLS reports that this service owes other domains: whether they were sent. They belong to no account, as tls_results.
CREATE TABLE tls_reports (
    day          date NOT NULL,
    domain       text COLLATE "C" NOT NULL,
    tries        integer NOT NULL,
    next_at      timestamptz,                                 -- of the next try; null: sent, not wanted, or given up
    PRIMARY KEY (day, domain)
);

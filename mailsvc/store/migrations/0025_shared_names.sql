-- A domain name is no longer unique among all accounts: an unverified domain excludes nobody (0024_domain_claims).
-- depends: 0024_domain_claims

ALTER TABLE domains DROP CONSTRAINT domains_name_key;

-- More roles than admin and member (mailsvc/store/people/roles.py). Members become developers, who can do the same.
-- depends: 0050_test_sender

ALTER TABLE members DROP CONSTRAINT members_role_check;
UPDATE members SET role = 'developer' WHERE role = 'member';
UPDATE links SET role = 'developer' WHERE role = 'member';
ALTER TABLE members ADD CONSTRAINT members_role_check CHECK (role IN ('admin', 'developer', 'marketing', 'read-only', 'billing'));

-- The previous release, and copies of accounts that it made, still write 'member'.
CREATE FUNCTION member_is_developer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.role := 'developer';
    RETURN NEW;
END
$$;
CREATE TRIGGER former_role BEFORE INSERT OR UPDATE OF role ON members
    FOR EACH ROW WHEN (NEW.role = 'member') EXECUTE FUNCTION member_is_developer();
CREATE TRIGGER former_role BEFORE INSERT OR UPDATE OF role ON links
    FOR EACH ROW WHEN (NEW.role = 'member') EXECUTE FUNCTION member_is_developer();

"""The section [privacy] of the settings."""

from __future__ import annotations

from pathlib import Path

import attrs

from mailsvc.settings import checks
from mailsvc.settings.reader import setting


@attrs.frozen
class Privacy:
    """Erasure of personal data, and closed accounts."""

    journal: Path | None = setting(
        None,
        "The erasure journal: a file outside the database by which erasures are applied again after a restore from a backup.",
        example="/var/lib/mailsvc/erasures",
    )
    grace_days: int = setting(30, "Days until the data of a closed account is deleted.", check=checks.between(0, 365))
    backup_days: int = setting(35, "Days to keep entries of the journal: as long as your oldest backup.", check=checks.between(1, 3650))

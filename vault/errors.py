"""The facts the vault refuses with, each a class of its own.

Messages name ids, versions and counts only. A key id is a random public handle; key bytes, identifiers of
persons and file contents never appear here.
"""

from datetime import datetime


class VaultError(Exception):
    """Anything the vault refuses or cannot do."""


class KeyDestroyed(VaultError):
    """The key existed and was destroyed; it is never made again for the same subject, class, month and scope."""

    def __init__(self, key_id: str, destroyed_at: datetime | None, request: str | None) -> None:
        """Carry which key, since when, and under which request."""
        when = "at an unrecorded time" if destroyed_at is None else f"at {destroyed_at.isoformat()}"
        super().__init__(f"key {key_id} was destroyed {when} (request {request})")
        self.key_id = key_id
        self.destroyed_at = destroyed_at
        self.request = request


class KeyUnknown(VaultError):
    """No row exists for the key; after a restore, bring the rows back from the unlocked store first."""

    def __init__(self, key_id: str) -> None:
        """Carry the id that was asked for."""
        super().__init__(f"key {key_id} is not in the vault")
        self.key_id = key_id


class KeyFenced(VaultError):
    """The subject's incarnation is fenced, or the key is being destroyed: nothing new is sealed under it."""

    def __init__(self, subject_id: int) -> None:
        """Carry the random id of the incarnation."""
        super().__init__(f"subject {subject_id} is fenced: no new data is sealed for it")
        self.subject_id = subject_id


class KeyClosing(KeyFenced):
    """The key is about to be destroyed by ``request``: it opens what it sealed, and seals nothing new."""

    def __init__(self, subject_id: int, request: str | None) -> None:
        """Carry the random id of the incarnation, and under which request the key goes."""
        super().__init__(subject_id)
        self.request = request


class NotDecryptable(VaultError):
    """The bytes are not a whole, unaltered ciphertext under this key (altered, truncated, extended, reordered)."""


class CommitmentMismatch(NotDecryptable):
    """The ciphertext commits to another key or another context; nothing was decrypted."""

    def __init__(self) -> None:
        """State the fact; there is nothing to carry that would not be key material."""
        super().__init__("the ciphertext's key commitment differs: wrong key, wrong context or altered header")


class MalformedPlaintext(NotDecryptable):
    """The decrypted bytes are not a packed body: unknown version, wrong digest, padding or size."""


class TooLarge(VaultError):
    """A body is larger than what one part may hold."""

    def __init__(self, size: int, limit: int) -> None:
        """Carry both sizes in bytes."""
        super().__init__(f"body is {size} bytes, at most {limit} are accepted")
        self.size = size
        self.limit = limit


class MalformedSnapshot(VaultError):
    """A snapshot of key rows cannot be read, or belongs to another tenant."""


class RootUnavailable(VaultError):
    """The root key cannot be used: folder missing, readable by others, or the version is gone."""


class RootGone(RootUnavailable):
    """The version of the root does not exist any more, or the bytes are not its own: no repeat will open them."""


class RootRefused(RootUnavailable):
    """The key service answered and refused: rights, credentials, or a key that is disabled or pending deletion."""

    def __init__(self, operation: str, code: str) -> None:
        """Carry which call was refused and the service's own code."""
        super().__init__(f"AWS KMS refuses {operation}: {code}")
        self.operation = operation
        self.code = code


class ProviderNotBuilt(RootUnavailable):
    """A kind of root that this version refuses because it is not built yet."""

    def __init__(self, scheme: str) -> None:
        """Carry the scheme of the refused address."""
        super().__init__(f"key provider {scheme!r} is not built; use file://FOLDER or aws-kms://KEY?region=REGION")
        self.scheme = scheme


class KekUnknown(VaultError):
    """A key-encryption key that should exist does not; the key folder is incomplete."""

    def __init__(self, tenant: str, name: str) -> None:
        """Carry the tenant's id and the file's name without its folder."""
        super().__init__(f"tenant {tenant} has no key-encryption key {name}")
        self.tenant = tenant
        self.name = name


class KekDestroyed(VaultError):
    """A key-encryption key was destroyed, so every row still wrapped under it is lost for good, by intent."""

    def __init__(self, tenant: str, group_no: int, epoch: int, destroyed_at: datetime) -> None:
        """Carry which epoch of which group, and since when."""
        super().__init__(
            f"key-encryption key of tenant {tenant}, group {group_no}, epoch {epoch} "
            f"was destroyed at {destroyed_at.isoformat()}"
        )
        self.tenant = tenant
        self.group_no = group_no
        self.epoch = epoch
        self.destroyed_at = destroyed_at


class DestructionUnproven(VaultError):
    """A key that should be gone could still be opened, or its row is still there."""

    def __init__(self, key_id: str, detail: str) -> None:
        """Carry the key and what was still possible."""
        super().__init__(f"key {key_id} is not destroyed: {detail}")
        self.key_id = key_id
        self.detail = detail

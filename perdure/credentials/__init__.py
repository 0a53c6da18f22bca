"""Keeps the secrets of credentials outside of histories, which hold references to them."""

from perdure.credentials.files import FileCredentialStore
from perdure.credentials.store import CredentialStore, Owner

__all__ = ["CredentialStore", "FileCredentialStore", "Owner"]

//! The names and the encryption of parts and manifests.
//!
//! Without encryption the name of a part is the blake3 of its bytes. An encrypted place has a key of its own, a secret key of
//! age: each file is an age file for it, and names are a hash with a key that follows from it, so that nobody without the
//! key can tell whether a known text is in a backup. The key itself is in `key.age`, which the passphrase or a key of the
//! user opens; so the passphrase is stretched once for each call, and not for each part.

use std::borrow::Cow;
use std::fmt;
use std::io::{Read as _, Write as _};
use std::path::Path;

use age::secrecy::{ExposeSecret as _, SecretString};
use age::{DecryptError, Decryptor, Encryptor, Identity, Recipient, scrypt, x25519};

use super::{BackupError, KEY_FILE, MAX_KEYS};

/// The context of the key of names.
const NAMES: &str = "ollmd 2026-11-28 names of the parts of a backup";
/// The work of a new passphrase, as a power of two: about half a second and 128 MiB.
const WORK_FACTOR: u8 = 17;
/// The most work that a passphrase may take: more would let a file of somebody else fill the memory.
const MAX_WORK_FACTOR: u8 = 18;

/// The secrets that a user gave.
#[derive(Default)]
pub(crate) struct Secret {
    passphrase: Option<SecretString>,
    identities: Vec<x25519::Identity>,
    recipients: Vec<x25519::Recipient>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl Secret {
    /// Returns the secrets of a call.
    ///
    /// **Errors**: `BadSecret` for an empty passphrase, a text that is no key, or too many keys.
    pub(crate) fn parse(
        passphrase: Option<String>,
        identities: &[String],
        recipients: &[String],
    ) -> Result<Self, BackupError> {
        let bad = |problem| BackupError::BadSecret { problem };
        if passphrase.as_ref().is_some_and(String::is_empty) {
            return Err(bad("the passphrase is empty"));
        }
        if passphrase.is_some() && !(identities.is_empty() && recipients.is_empty()) {
            return Err(bad("a backup is encrypted with a passphrase or with keys, not with both"));
        }
        if identities.len() + recipients.len() > MAX_KEYS {
            return Err(bad("more than 1,000 keys were given"));
        }
        let not_secret =
            bad("an identity is not a secret key of age, which begins with AGE-SECRET-KEY-1");
        let not_public = bad("a recipient is not a public key of age, which begins with age1");
        let identities = identities.iter().map(|key| key.trim().parse()).collect::<Result<_, _>>();
        let recipients = recipients.iter().map(|key| key.trim().parse()).collect::<Result<_, _>>();
        Ok(Self {
            passphrase: passphrase.map(SecretString::from),
            identities: identities.map_err(|_: &str| not_secret)?,
            recipients: recipients.map_err(|_: &str| not_public)?,
        })
    }

    /// Returns whether a new backup would be encrypted for others.
    pub(super) fn has_recipients(&self) -> bool {
        !self.recipients.is_empty()
    }

    /// Returns whether nothing was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.passphrase.is_none() && self.identities.is_empty() && self.recipients.is_empty()
    }
}

/// The way in which the parts of a place are named and encrypted.
pub(super) enum Cover {
    Plain,
    Sealed(Box<SealKey>),
}

/// The key of an encrypted place.
pub(super) struct SealKey {
    identity: x25519::Identity,
    recipient: x25519::Recipient,
    names: [u8; blake3::KEY_LEN],
}

impl SealKey {
    fn new(identity: x25519::Identity) -> Self {
        let names = blake3::derive_key(NAMES, identity.to_string().expose_secret().as_bytes());
        Self { recipient: identity.to_public(), identity, names }
    }
}

impl Cover {
    /// Makes a new key if secrets were given; also returns the content of its file.
    pub(super) fn create(secret: &Secret) -> Result<(Self, Option<Vec<u8>>), BackupError> {
        if secret.is_empty() {
            return Ok((Self::Plain, None));
        }
        let identity = x25519::Identity::generate();
        let own = secret.identities.iter().map(x25519::Identity::to_public);
        let mut recipients: Vec<Box<dyn Recipient>> = Vec::new();
        for recipient in own.chain(secret.recipients.iter().cloned()) {
            recipients.push(Box::new(recipient));
        }
        if let Some(passphrase) = &secret.passphrase {
            let mut recipient = scrypt::Recipient::new(passphrase.clone());
            recipient.set_work_factor(WORK_FACTOR);
            recipients.push(Box::new(recipient));
        }
        let line = format!("{}\n", identity.to_string().expose_secret());
        let sealed = sealed(line.as_bytes(), &mut recipients.iter().map(AsRef::as_ref));
        Ok((Self::Sealed(Box::new(SealKey::new(identity))), Some(sealed)))
    }

    /// Opens the key in the content of its file, which has the checksum that was written with it.
    pub(super) fn open(key_file: &[u8], secret: &Secret, path: &Path) -> Result<Self, BackupError> {
        let damaged = || BackupError::damaged(path, KEY_FILE, "it is no key");
        let path = path.to_owned();
        let decryptor = Decryptor::new_buffered(key_file).map_err(|_| damaged())?;
        let with_passphrase = decryptor.is_scrypt();
        let opened = match &secret.passphrase {
            Some(passphrase) if with_passphrase => {
                let mut identity = scrypt::Identity::new(passphrase.clone());
                identity.set_max_work_factor(MAX_WORK_FACTOR);
                decryptor.decrypt(std::iter::once(&identity as &dyn Identity))
            }
            None if !with_passphrase && !secret.identities.is_empty() => {
                decryptor.decrypt(secret.identities.iter().map(|key| key as &dyn Identity))
            }
            _ => return Err(BackupError::NeedsSecret { path, with_passphrase }),
        };
        let mut opened = opened.map_err(|error| match error {
            DecryptError::ExcessiveWork { .. } => BackupError::BadSecret {
                problem: "the passphrase of the backup needs more memory than is allowed",
            },
            _ if with_passphrase => BackupError::WrongPassphrase { path },
            _ => BackupError::WrongKey { path },
        })?;
        let mut line = String::new();
        opened.read_to_string(&mut line).map_err(|_| damaged())?;
        let identity = line.trim_end().parse().map_err(|_: &str| damaged())?;
        Ok(Self::Sealed(Box::new(SealKey::new(identity))))
    }

    pub(super) const fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed(_))
    }

    /// Returns the name of a content.
    pub(super) fn name_of(&self, bytes: &[u8]) -> String {
        let hash = match self {
            Self::Plain => blake3::hash(bytes),
            Self::Sealed(key) => blake3::keyed_hash(&key.names, bytes),
        };
        hash.to_hex().to_string()
    }

    /// Returns the bytes to be stored.
    pub(super) fn close<'b>(&self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        match self {
            Self::Plain => Cow::Borrowed(bytes),
            Self::Sealed(key) => {
                let recipient: &dyn Recipient = &key.recipient;
                Cow::Owned(sealed(bytes, &mut std::iter::once(recipient)))
            }
        }
    }

    /// Returns the content of stored bytes, or `None` if they are damaged.
    pub(super) fn opened(&self, stored: Vec<u8>) -> Option<Vec<u8>> {
        let key = match self {
            Self::Plain => return Some(stored),
            Self::Sealed(key) => key,
        };
        let decryptor = Decryptor::new_buffered(stored.as_slice()).ok()?;
        let identity: &dyn Identity = &key.identity;
        let mut bytes = Vec::with_capacity(stored.len());
        decryptor.decrypt(std::iter::once(identity)).ok()?.read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Returns whether a stored content of `stored` bytes may have `len` bytes. A kill never leaves another one, but a disk
    /// that is full or fails may.
    pub(super) const fn fits(&self, stored: u64, len: u64) -> bool {
        match self {
            Self::Plain => stored == len,
            Self::Sealed(_) => stored > len,
        }
    }
}

/// Returns an age file.
fn sealed(bytes: &[u8], recipients: &mut dyn Iterator<Item = &dyn Recipient>) -> Vec<u8> {
    let in_memory = "writing to memory does not fail";
    let encryptor = Encryptor::with_recipients(recipients).expect("the recipients are of one kind");
    let mut out = encryptor.wrap_output(Vec::with_capacity(bytes.len() + 1024)).expect(in_memory);
    out.write_all(bytes).expect(in_memory);
    out.finish().expect(in_memory)
}

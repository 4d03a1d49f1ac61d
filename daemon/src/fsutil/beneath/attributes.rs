//! The attributes of a file besides its content and its permissions, and their copy to a file that takes its place.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::LazyLock;

use ollm_protocol::content::FileLoss;
use rustix::fs::{Gid, Mode, XattrFlags};
use rustix::io::Errno;

use super::MODE_BITS;
use crate::fsutil::disk::{Change, carry_out};

/// The bits of a mode that run a program for its owner or its group, and the sticky bit.
pub(super) const SPECIAL_BITS: u32 = 0o7000;
/// The special bit that only members of the group can set.
const SET_GROUP_BIT: u32 = 0o2000;
/// The access control list of a file, beyond its permissions.
const ACL: &[u8] = b"system.posix_acl_access";
/// The label of a file for the security policy of the system, which gives one to each new file.
const LABEL: &[u8] = b"security.selinux";

/// The error of the system for an extended attribute that a file does not have.
#[cfg(target_vendor = "apple")]
const MISSING: Errno = Errno::NOATTR;
#[cfg(not(target_vendor = "apple"))]
const MISSING: Errno = Errno::NODATA;

/// The attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    group: u32,
    special_bits: u32,
    /// Set if the file has other names, in whatever directory.
    has_other_names: bool,
    extended: Vec<(CString, Vec<u8>)>,
}

/// The rights of this process that decide which attributes it can give to a file.
struct Rights {
    is_root: bool,
    groups: Vec<u32>,
}

impl Rights {
    fn of_process() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let own = rustix::process::getegid();
        let groups = groups.into_iter().chain([own]).map(Gid::as_raw).collect();
        Self { is_root: rustix::process::geteuid().is_root(), groups }
    }
}

impl Attributes {
    /// Reads the attributes of an open file.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let found = file.metadata()?;
        let mut all = Vec::new();
        for name in extended_names(file)? {
            if let Some(value) = extended(file, &name)? {
                all.push((name, value));
            }
        }
        Ok(Self {
            group: found.gid(),
            special_bits: found.mode() & SPECIAL_BITS,
            has_other_names: found.nlink() > 1,
            extended: all,
        })
    }

    /// Returns the attributes that a file which takes the place of this one will not have, because the system does not let this
    /// process set them.
    pub(crate) fn losses(&self) -> Vec<FileLoss> {
        // They do not change while the daemon runs.
        static RIGHTS: LazyLock<Rights> = LazyLock::new(Rights::of_process);
        self.losses_with(&RIGHTS)
    }

    fn losses_with(&self, rights: &Rights) -> Vec<FileLoss> {
        let is_member = rights.is_root || rights.groups.contains(&self.group);
        let mut losses = Vec::new();
        if self.has_other_names {
            losses.push(FileLoss::HardLinks);
        }
        if !is_member {
            losses.push(FileLoss::Group);
        }
        if !is_member && self.special_bits & SET_GROUP_BIT != 0 {
            losses.push(FileLoss::SpecialBits);
        }
        let can_set = |name: &CStr| rights.is_root || is_settable(name.to_bytes());
        if self.extended.iter().any(|(name, _)| !can_set(name)) {
            losses.push(FileLoss::ExtendedAttributes);
        }
        losses
    }

    /// Gives a new file these attributes and nine bits of permissions, and returns those that it could not get.
    pub(super) fn give(&self, file: &File, mode: u32) -> io::Result<Vec<FileLoss>> {
        let mut losses = Vec::new();
        if file.metadata()?.gid() != self.group {
            let group = Gid::from_raw(self.group);
            if rustix::fs::fchown(file, None, Some(group)).is_err() {
                losses.push(FileLoss::Group);
            }
        }
        // Before the permissions, which may forbid it, and which are a part of the access control list.
        for (name, value) in &self.extended {
            let set = rustix::fs::fsetxattr(file, name.as_c_str(), value, XattrFlags::empty());
            if set.is_err() && extended(file, name)?.as_ref() != Some(value) {
                let is_acl = name.to_bytes() == ACL;
                losses.push(if is_acl { FileLoss::Acl } else { FileLoss::ExtendedAttributes });
            }
        }
        // The directory may give one to each new file.
        if !self.extended.iter().any(|(name, _)| name.to_bytes() == ACL) {
            match rustix::fs::fremovexattr(file, ACL) {
                Ok(()) | Err(MISSING | Errno::NOTSUP | Errno::NOSYS) => {}
                Err(_) => losses.push(FileLoss::Acl),
            }
        }
        let wanted = (mode & MODE_BITS) | self.special_bits;
        rustix::fs::fchmod(file, Mode::from_raw_mode(wanted))?;
        if file.metadata()?.mode() & SPECIAL_BITS != self.special_bits {
            losses.push(FileLoss::SpecialBits);
        }
        losses.dedup();
        Ok(losses)
    }
}

/// Returns whether the owner of a file can set an extended attribute.
fn is_settable(name: &[u8]) -> bool {
    let is_of_system = [&b"system."[..], b"security.", b"trusted."];
    [ACL, LABEL].contains(&name) || !is_of_system.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the names of the extended attributes of a file; none if the file system has none.
fn extended_names(file: &File) -> io::Result<Vec<CString>> {
    let mut names: Vec<u8> = Vec::new();
    loop {
        let size = match rustix::fs::flistxattr_query(file) {
            Err(Errno::NOTSUP | Errno::NOSYS) | Ok(0) => return Ok(Vec::new()),
            size => size?,
        };
        names.resize(size, 0);
        match rustix::fs::flistxattr(file, &mut names[..]) {
            // Another one was added meanwhile.
            Err(Errno::RANGE) => {}
            size => {
                names.truncate(size?);
                let names = names.split_inclusive(|byte| *byte == 0);
                let names = names.filter_map(|name| CStr::from_bytes_with_nul(name).ok());
                return Ok(names.map(CStr::to_owned).collect());
            }
        }
    }
}

/// Returns the value of an extended attribute, if the file has it.
fn extended(file: &File, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    loop {
        let size = match rustix::fs::fgetxattr_query(file, name) {
            Err(MISSING | Errno::NOTSUP | Errno::PERM | Errno::ACCESS) => return Ok(None),
            size => size?,
        };
        let mut value = vec![0; size];
        match rustix::fs::fgetxattr(file, name, &mut value[..]) {
            Err(Errno::RANGE) => {}
            size => {
                value.truncate(size?);
                return Ok(Some(value));
            }
        }
    }
}

/// Gives a new file its permissions, and attributes of another file if it takes the place of one; returns those that it could not get.
pub(super) fn give_attributes(
    file: &File,
    path: &Path,
    mode: u32,
    attributes: Option<&Attributes>,
) -> io::Result<Vec<FileLoss>> {
    carry_out(Change::SetMode(path), || match attributes {
        Some(attributes) => attributes.give(file, mode),
        None => {
            rustix::fs::fchmod(file, Mode::from_raw_mode(mode & MODE_BITS))?;
            Ok(Vec::new())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_what_this_process_may_not_set() {
        let member = || Rights { is_root: false, groups: vec![7] };
        let root = || Rights { is_root: true, groups: vec![0] };
        let check = |group,
                     special_bits,
                     has_other_names,
                     names: &[&CStr],
                     rights: Rights,
                     expect: &[FileLoss]| {
            let extended = names.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
            let attributes = Attributes { group, special_bits, has_other_names, extended };
            assert_eq!(attributes.losses_with(&rights), expect, "{attributes:?}");
        };
        check(7, 0, false, &[], member(), &[]);
        check(7, 0o6000, false, &[c"user.a", c"system.posix_acl_access"], member(), &[]);
        check(7, 0, true, &[], member(), &[FileLoss::HardLinks]);
        check(8, 0o4000, false, &[], member(), &[FileLoss::Group]);
        check(8, 0o2000, false, &[], member(), &[FileLoss::Group, FileLoss::SpecialBits]);
        check(7, 0, false, &[c"security.capability"], member(), &[FileLoss::ExtendedAttributes]);
        check(7, 0, false, &[c"security.selinux"], member(), &[]);
        check(8, 0o7000, false, &[c"security.capability"], root(), &[]);
    }
}

//! Getting a connection to the kernel: `mount(2)` as root, `fusermount3` otherwise.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno as Os;
use rustix::mount::MountFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use crate::{MountError, MountOptions};

const DEVICE: &str = "/dev/fuse";

/// A mount that waits for its server.
pub(crate) struct Connection {
    /// Where requests arrive.
    pub device: OwnedFd,
    /// With `auto_unmount`: while this is open, `fusermount3` leaves the mount in place.
    pub guard: Option<OwnedFd>,
    /// The mount point with symbolic links resolved, which is how the kernel names it.
    pub mountpoint: PathBuf,
}

/// Whether mounting and unmounting need no helper.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Mounts.
pub(crate) fn connect(options: &MountOptions) -> Result<Connection, MountError> {
    let mountpoint = check_mountpoint(&options.mountpoint)?;
    check_device()?;
    if is_root() && !options.auto_unmount {
        let device = mount_directly(&mountpoint, options)?;
        return Ok(Connection { device, guard: None, mountpoint });
    }
    if options.auto_unmount && !is_root() && !options.allow_other {
        // The helper looks at the mount as root, and root is let in only with allow_other.
        return Err(MountError::Option("`auto_unmount` works only together with `allow_other`".to_owned()));
    }
    let (device, guard) = mount_through_helper(&mountpoint, options)?;
    let guard = options.auto_unmount.then_some(guard);
    Ok(Connection { device, guard, mountpoint })
}

fn check_mountpoint(path: &Path) -> Result<PathBuf, MountError> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_dir() => return Err(MountError::NotADirectory(path.to_path_buf())),
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(MountError::NoMountpoint(path.to_path_buf()));
        }
        Err(e) if is_dead(&e) => {
            return Err(MountError::DeadMount(path.to_path_buf()));
        }
        Err(e) => return Err(MountError::system(format!("examining {}", path.display()), e)),
    }
    let resolved = std::fs::canonicalize(path)
        .map_err(|e| MountError::system(format!("resolving {}", path.display()), e))?;
    match find_mount(&resolved) {
        Some(mount) if mount.fs_type == "fuse.fstitch" => Err(MountError::AlreadyMounted(resolved)),
        _ => Ok(resolved),
    }
}

/// Whether an access failed because the server of a mount has died.
#[must_use]
pub fn is_dead(error: &std::io::Error) -> bool {
    // The last two while the kernel takes the server's io_uring apart.
    let answers = [Os::NOTCONN, Os::CONNABORTED, Os::CANCELED];
    answers.iter().any(|os| error.raw_os_error() == Some(os.raw_os_error()))
}

fn check_device() -> Result<(), MountError> {
    match std::fs::metadata(DEVICE) {
        Ok(found) if found.file_type().is_char_device() => Ok(()),
        Ok(_) => Err(MountError::NoFuseDevice),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(MountError::NoFuseDevice),
        Err(e) => Err(MountError::system(DEVICE, e)),
    }
}

fn open_device() -> Result<OwnedFd, MountError> {
    match OpenOptions::new().read(true).write(true).open(DEVICE) {
        Ok(device) => Ok(device.into()),
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => Err(MountError::FuseDeviceForbidden),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(MountError::NoFuseDevice),
        // The node exists but no driver stands behind it.
        Err(e) if [Os::NODEV, Os::NXIO].iter().any(|os| e.raw_os_error() == Some(os.raw_os_error())) => {
            Err(MountError::NoFuseDevice)
        }
        Err(e) => Err(MountError::system(DEVICE, e)),
    }
}

/// The mount flags that both ways share, as flag and as word.
fn flags(options: &MountOptions) -> Vec<(MountFlags, &'static str)> {
    let all = [
        (options.read_only, MountFlags::RDONLY, "ro"),
        (options.noatime, MountFlags::NOATIME, "noatime"),
        (!options.dev, MountFlags::NODEV, "nodev"),
        (!options.suid, MountFlags::NOSUID, "nosuid"),
        (!options.exec, MountFlags::NOEXEC, "noexec"),
        (options.lazytime, MountFlags::LAZYTIME, "lazytime"),
    ];
    all.into_iter().filter(|(on, ..)| *on).map(|(_, flag, word)| (flag, word)).collect()
}

fn mount_directly(mountpoint: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = open_device()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid}", device.as_raw_fd());
    if options.default_permissions {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let flags = flags(options).into_iter().fold(MountFlags::empty(), |all, (flag, _)| all | flag);
    let data = std::ffi::CString::new(data).expect("no NUL in it");
    let kind = format!("fuse.{}", options.subtype);
    match rustix::mount::mount(options.fs_name.as_str(), mountpoint, kind.as_str(), flags, data.as_c_str()) {
        Ok(()) => {}
        Err(Os::PERM) => return Err(MountError::NotPermitted(mountpoint.to_path_buf())),
        Err(Os::NODEV) => return Err(MountError::NoFuseDevice),
        Err(e) => return Err(MountError::system(format!("mounting on {}", mountpoint.display()), e)),
    }
    set_read_ahead(mountpoint, options.read_ahead_kib);
    Ok(device)
}

/// Changes the flags of an existing mount (`-o remount`): read-only, noatime, nodev, nosuid, noexec. The server
/// is not told; a mount that becomes read-only refuses changes in the kernel.
///
/// # Errors
/// [`MountError::NotPermitted`] without root's rights, [`MountError::NoMountpoint`] where none of ours is mounted.
pub fn remount(options: &MountOptions) -> Result<(), MountError> {
    let mountpoint = options.mountpoint.as_path();
    if find_mount(mountpoint).is_none_or(|mount| !mount.fs_type.starts_with("fuse.")) {
        return Err(MountError::NoMountpoint(mountpoint.to_path_buf()));
    }
    let flags = flags(options).into_iter().fold(MountFlags::empty(), |all, (flag, _)| all | flag);
    match rustix::mount::mount_remount(mountpoint, flags, c"") {
        Ok(()) => Ok(()),
        Err(Os::PERM) => Err(MountError::NotPermitted(mountpoint.to_path_buf())),
        Err(e) => Err(MountError::system(format!("remounting {}", mountpoint.display()), e)),
    }
}

/// Lets the kernel read further ahead than its 128 KiB, so that sequential reads arrive in large requests.
/// Where that fails, reading is slower and still right.
fn set_read_ahead(mountpoint: &Path, kib: u32) {
    let Some(mount) = find_mount(mountpoint) else { return };
    let knob = format!("/sys/class/bdi/{}/read_ahead_kb", mount.device);
    if let Err(e) = std::fs::write(&knob, kib.to_string()) {
        tracing::debug!("{knob}: {e}");
    }
}

fn mount_through_helper(mountpoint: &Path, options: &MountOptions) -> Result<(OwnedFd, OwnedFd), MountError> {
    let mut words = format!("fsname={},subtype={}", escape(&options.fs_name), escape(&options.subtype));
    let chosen = [
        (options.default_permissions, "default_permissions"),
        (options.allow_other, "allow_other"),
        (options.auto_unmount, "auto_unmount"),
        (is_root() && options.dev, "dev"),
        (is_root() && options.suid, "suid"),
    ];
    let chosen = chosen.into_iter().filter(|(on, _)| *on).map(|(_, word)| word);
    let named = flags(options).into_iter().map(|(_, word)| word);
    for word in chosen.chain(named.filter(|word| !["nodev", "nosuid", "lazytime"].contains(word))) {
        write!(words, ",{word}").expect("writing to a string cannot fail");
    }
    let socket = |e: Os| MountError::system("making a socket pair", e);
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(socket)?;
    let mut child = Command::new("fusermount3")
        .args(["-o", &words, "--"])
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => MountError::NoFusermount,
            _ => MountError::system("starting fusermount3", e),
        })?;
    let device = receive_descriptor(&ours);
    // With auto_unmount the helper stays, so its end must not be awaited then.
    if let (Ok(Some(device)), true) = (&device, options.auto_unmount) {
        let device = device.try_clone().map_err(|e| MountError::system("duplicating a descriptor", e))?;
        return Ok((device, ours));
    }
    let mut said = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut said).map_err(|e| MountError::system("reading from fusermount3", e))?;
    }
    let status = child.wait().map_err(|e| MountError::system("waiting for fusermount3", e))?;
    match device.map_err(|e| MountError::system("receiving from fusermount3", e))? {
        Some(device) if status.success() => Ok((device, ours)),
        _ => Err(explain(&said)),
    }
}

/// Words of a `-o` list are separated by commas; `fusermount3` takes a backslash before one as part of a word.
fn escape(word: &str) -> String {
    word.replace('\\', "\\\\").replace(',', "\\,")
}

fn explain(said: &str) -> MountError {
    if said.contains("allow_other") {
        return MountError::AllowOtherForbidden;
    }
    if said.contains("/dev/fuse") && said.contains("ermission denied") {
        return MountError::FuseDeviceForbidden;
    }
    let said = said.trim();
    // The helper is root when it looks, and FUSE lets in only the user whose mount it is.
    let advice = if said.contains("bad mount point") && said.contains("ermission denied") {
        " (inside another FUSE mount, that one must have allow_other)"
    } else {
        ""
    };
    MountError::Fusermount(format!("{said}{advice}"))
}

/// Receives the descriptor of the connection; `None` if the helper closed the socket without one.
fn receive_descriptor(socket: impl AsFd) -> Result<Option<OwnedFd>, Os> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// A line of the mount table.
pub(crate) struct MountLine {
    /// Major and minor number, `0:42`.
    pub device: String,
    /// The type, such as `fuse.fstitch`.
    pub fs_type: String,
}

/// The topmost mount on `path`, without touching it.
pub(crate) fn find_mount(path: &Path) -> Option<MountLine> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    table.lines().rev().find_map(|line| parse_mount_line(line, path))
}

fn parse_mount_line(line: &str, path: &Path) -> Option<MountLine> {
    let mut fields = line.split(' ');
    let device = fields.nth(2)?.to_owned();
    let mountpoint = unescape(fields.nth(1)?);
    if Path::new(&mountpoint) != path {
        return None;
    }
    let fs_type = fields.skip_while(|field| *field != "-").nth(1)?.to_owned();
    Some(MountLine { device, fs_type })
}

/// Undoes the octal escapes of blanks and backslashes in the mount table.
fn unescape(field: &str) -> String {
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    escapes.iter().fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_is_understood() {
        let line = "36 35 0:42 / /mnt/a\\040b rw,noatime shared:1 - fuse.fstitch disk.img rw,user_id=0";
        let found = parse_mount_line(line, Path::new("/mnt/a b")).unwrap();
        assert_eq!((found.device.as_str(), found.fs_type.as_str()), ("0:42", "fuse.fstitch"));
        assert!(parse_mount_line(line, Path::new("/mnt")).is_none());
        assert!(parse_mount_line("garbage", Path::new("/mnt")).is_none());
    }

    #[test]
    fn refusals_of_the_helper_are_explained() {
        let said =
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf";
        assert!(matches!(explain(said), MountError::AllowOtherForbidden));
        let said = "fusermount3: failed to open /dev/fuse: Permission denied";
        assert!(matches!(explain(said), MountError::FuseDeviceForbidden));
        assert!(matches!(explain("else"), MountError::Fusermount(said) if said == "else"));
        let said = explain("fusermount3: bad mount point /one/two: Permission denied\n").to_string();
        assert!(said.ends_with("that one must have allow_other)"), "{said}");
    }
}

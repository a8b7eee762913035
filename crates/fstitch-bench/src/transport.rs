//! Which way requests reach our servers.

use fstitch_fuse::Transport;

/// Whether the kernel offers io_uring to new mounts.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// A choice that holds while this lives; afterwards the kernel's parameter is what it was.
#[derive(Debug)]
pub struct Chosen {
    before: Option<String>,
    /// Mounts use io_uring.
    pub is_io_uring: bool,
    /// For the report.
    pub about: String,
}

/// Sees to it that mounts that leave the transport to themselves use `transport`.
#[must_use]
pub fn choose(transport: Transport) -> Chosen {
    let wanted = if transport == Transport::Device { "N" } else { "Y" };
    let before = std::fs::read_to_string(PARAMETER).ok();
    let is = |wanted| std::fs::read_to_string(PARAMETER).is_ok_and(|now| now.trim() == wanted);
    let changed = !is(wanted) && std::fs::write(PARAMETER, wanted).is_ok();
    let way = if is("Y") { "io_uring, a queue for each processor" } else { "`/dev/fuse`, two threads" };
    let how = match (changed, is(wanted)) {
        (true, _) => format!(" (`fuse.enable_uring` set to {wanted} for this run)"),
        (false, true) => String::new(),
        (false, false) => " (io_uring takes Linux 6.14 or later and root)".to_owned(),
    };
    let is_io_uring = is("Y");
    Chosen {
        before: before.filter(|_| changed),
        is_io_uring,
        about: format!("{way}{how}; those of fuse2fs: `/dev/fuse`"),
    }
}

impl Drop for Chosen {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // Whoever could write it before can do so now.
            let _ = std::fs::write(PARAMETER, before);
        }
    }
}

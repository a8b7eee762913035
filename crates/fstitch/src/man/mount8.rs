//! The pages of the mount helper, whose arguments are those of mount(8), not ours.

use anyhow::Result;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::page::{list, mount_options, paragraphs, title};

/// `mount.fuse.fstitch(8)`, and its other name.
pub fn pages() -> Result<Vec<(String, String)>> {
    let other = ".so man8/mount.fuse.fstitch.8\n".to_owned();
    Ok(vec![("mount.fuse.fstitch.8".to_owned(), helper()), ("mount.fstitch.8".to_owned(), other)])
}

fn helper() -> String {
    let mut page = Roff::new();
    paragraphs(
        &mut page,
        "NAME",
        &["mount.fuse.fstitch, mount.fstitch - mount ext2 and ext3 images in user space"],
    );
    page.control("SH", ["SYNOPSIS"]);
    page.text([
        bold("mount -t fuse.fstitch"),
        roman(" [-o "),
        italic("OPTIONS"),
        roman("] "),
        italic("IMAGE DIRECTORY"),
    ]);
    page.control("PP", []);
    let line: [Inline; 4] =
        [bold("mount.fuse.fstitch "), italic("IMAGE DIRECTORY"), roman(" [-sfnvrw] [-o "), italic("OPTIONS")];
    page.text(line.into_iter().chain([roman("]")]).collect::<Vec<_>>());
    paragraphs(
        &mut page,
        "DESCRIPTION",
        &[
            "mount(8) calls this helper for the type fuse.fstitch, in its command line and in /etc/fstab. It returns when \
             the mount answers, and prints nothing when all is well. umount(8) ends the mount; it may return before the last \
             write, for which fstitch-umount(1) waits.",
            "In /etc/fstab the last field is 0: no check is needed before a mount.",
        ],
    );
    list(
        &mut page,
        "OPTIONS",
        &[
            ("-s", "ignore options that are not known"),
            ("-f", "check the options, and mount nothing"),
            ("-n, -v", "accepted, without effect"),
            ("-r, -w", "as -o ro and -o rw"),
            ("-o OPTIONS", "see below; generic options of mount(8) are known as well"),
        ],
    );
    mount_options(&mut page);
    list(
        &mut page,
        "EXIT STATUS",
        &[
            ("0", "success"),
            ("1", "wrong usage of the helper"),
            ("32", "the mount failed, or an option is wrong"),
        ],
    );
    list(
        &mut page,
        "EXAMPLES",
        &[
            ("mount -t fuse.fstitch -o noatime disk.img /mnt", "mounts an image"),
            ("mount -o remount,ro /mnt", "accepts no changes any more"),
            (
                "/srv/disk.img /srv/data fuse.fstitch noatime,nosuid,nodev,nofail 0 0",
                "mounts it when the machine starts, as a line of /etc/fstab",
            ),
        ],
    );
    paragraphs(
        &mut page,
        "SEE ALSO",
        &["fstitch(1), fstitch-mount(1), fstitch-umount(1), mount(8), fstab(5)"],
    );
    title("mount.fuse.fstitch", 8) + &page.render()
}

//! A mount whose medium is somebody else's as well.
//!
//! What it prevents: success that is reported for a medium that is not there any more.

use std::fs::{self, File};

use crate::harness::{Mounted, Place, fstitch};

#[test]
fn a_truncated_image_fails_every_sync_and_the_unmount() {
    for kind in ["ext2", "ext3"] {
        let place = Place::new();
        let (image, at) = (place.text("a.img"), place.directory("m"));
        fstitch(&format!("mkfs {kind} -q {image} 32M")).ok();
        let Some(mounted) = Mounted::new("", &image, &at) else { return };
        let file = mounted.path().join("file");
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        File::open(&at).unwrap().sync_all().unwrap();
        File::options().write(true).open(&image).unwrap().set_len(1 << 20).unwrap();
        // Nothing has to be written: there is nothing left to keep the promise with.
        assert_eq!(File::open(&at).unwrap().sync_all().unwrap_err().raw_os_error(), Some(5), "{kind}");
        assert_eq!(File::open(&file).unwrap().sync_all().unwrap_err().raw_os_error(), Some(5), "{kind}");
        assert!(fs::write(mounted.path().join("new"), "x").is_err(), "{kind}");
        let status = fstitch(&format!("status {at}"));
        assert!(status.code == 1 && status.out.contains("has been truncated"), "{status:?}");
        let ended = fstitch(&format!("umount {at}"));
        let named = ended.err.contains("a.img has been truncated") && ended.err.contains("1048576 bytes");
        assert!(ended.code == 1 && named && ended.err.contains("33554432"), "{ended:?}");
        assert_eq!(fs::metadata(&image).unwrap().len(), 1 << 20, "nothing was written behind its end");
    }
}

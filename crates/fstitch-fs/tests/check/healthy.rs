//! Volumes in good order have no findings.

use fstitch_core::MemDevice;
use fstitch_fs::ext2::check::check_ext2;

use crate::corpus::{SHAPES, image};
use crate::support::{Scratch, have};

#[test]
fn volumes_of_the_reference_are_clean() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("healthy");
    for shape in SHAPES {
        let device = MemDevice::from_image(1024, image(&scratch, shape));
        let report = check_ext2(&device).expect("a readable volume");
        assert!(report.is_clean(), "{}: {:#?}", shape.name, report.findings);
    }
}

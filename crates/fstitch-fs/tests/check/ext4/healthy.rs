//! Volumes in good order have no findings, and looking changes nothing.

use fstitch_core::MemDevice;
use fstitch_fs::ext2::check::check_ext2;

use super::corpus::{SHAPES, filled};
use crate::support::Scratch;

#[test]
fn volumes_that_the_kernel_filled_are_clean() {
    let scratch = Scratch::new("ext4-healthy");
    for shape in SHAPES {
        let Some(image) = filled(&scratch, shape) else { return };
        let device = MemDevice::from_image(1024, image.clone());
        let report = check_ext2(&device).expect("a volume that can be checked");
        assert!(report.is_clean(), "{}: {:#?}", shape.name, report.findings);
        assert!(device.image() == image, "{}", shape.name);
    }
}

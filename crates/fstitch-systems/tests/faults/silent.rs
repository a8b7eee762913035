//! Defects that report success: nothing can undo them, but nothing may panic, and what is found is reported.

use fstitch_core::{Errno, Error, FileSystem};
use fstitch_crashlab::FaultPlan;
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::uhfs::LowLevelFs;

use crate::volume::{KEPT, base, contents, device, make, mount, with};

/// Works on a volume whose device misbehaves; errors are fine, panics are not.
fn survive(plan: &str) {
    let plan: FaultPlan = plan.parse().unwrap();
    let device = device(&base(), plan.clone());
    let expected = |error: &fstitch_core::Error| {
        let known = [Errno::IO, Errno::UCLEAN, Errno::ROFS, Errno::NOENT, Errno::STALE, Errno::NOSPC];
        assert!(
            known.contains(&error.errno()) || matches!(error, fstitch_core::Error::Unsupported(_)),
            "{plan}: {error}"
        );
    };
    match mount(device.clone()) {
        Ok((cache, fs)) => {
            for n in 0..12 {
                make(&fs, fs.root(), &format!("file-{n}"), &[n; 4_000]).unwrap_or_else(|e| expected(&e));
                contents(&fs, "big").map(drop).unwrap_or_else(|e| expected(&e));
                fs.sync().unwrap_or_else(|e| expected(&e));
            }
            fs.unmount().unwrap_or_else(|e| expected(&e));
            cache.check_invariants();
        }
        Err(error) => expected(&error),
    }
    device.device().set_plan(FaultPlan::default());
    // Whatever is on the medium now, the checker says what it thinks of it.
    check_ext2(&*device).map(drop).unwrap_or_else(|e| expected(&e));
}

#[test]
fn silent_damage_never_panics() {
    let defects =
        ["torn write", "lost write", "misdirected write", "misdirected read", "corrupted=9 read", "stale"];
    for defect in defects {
        for seed in 0..6 {
            survive(&format!("seed={seed}; {defect} nth={} every=7 times=all", 1 + seed * 3));
        }
    }
    survive("lying times=all; corrupted=40 read kind=Inode times=all");
}

#[test]
fn noticed_damage_ends_changes_and_loses_none() {
    let device = device(&base(), FaultPlan::default());
    let (cache, fs) = mount(device.clone()).unwrap();
    make(&fs, fs.root(), "pending", &[7; 3_000]).unwrap();
    device.device().set_plan("seed=1; corrupted=900 read kind=Directory times=all".parse().unwrap());
    let listed = with(&fs, "dir", |dir| fs.readdir(dir, 0, &mut |_| true));
    assert!(matches!(listed, Err(Error::Corrupt(_))), "{listed:?}");
    device.device().set_plan(FaultPlan::default());
    let refused = make(&fs, fs.root(), "late", &[8]).unwrap_err();
    assert_eq!(refused.errno(), Errno::ROFS, "{refused}");
    assert!(cache.poisoned().is_some_and(|why| why.to_string().contains("dir")), "{:?}", cache.poisoned());
    assert_eq!(contents(&fs, "kept").unwrap(), KEPT);
    assert!(fs.unmount().is_err());
    let (_, fs) = mount(device.clone()).unwrap();
    assert_eq!(contents(&fs, "pending").unwrap(), [7; 3_000]);
    assert_eq!(contents(&fs, "late").unwrap_err().errno(), Errno::NOENT);
    assert!(fs.format().was_unclean());
}

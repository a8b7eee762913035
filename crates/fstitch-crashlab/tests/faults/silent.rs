//! Defects that report success: nothing can undo them, but nothing may panic, and what is found is reported.

use fstitch_core::{Errno, FileSystem};
use fstitch_crashlab::FaultPlan;
use fstitch_fs::check::check_ext2;

use crate::volume::{base, contents, device, make, mount};

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

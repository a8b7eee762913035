//! Media of level M4 under the laboratory's random workloads: writes that are lost, land elsewhere or change on their
//! way, flushes that lie. Nothing can be promised of the contents. What is noticed names its place; nothing panics or
//! hangs, neither then nor when the volume is mounted again, checked, read and repaired.

use std::sync::Arc;

use fstitch_core::{BlockDevice, Caller, Error, FileKind, FileSystem, InodeNo, Result};
use fstitch_crashlab::workload::{Target, Workload};
use fstitch_crashlab::{FaultDevice, FaultPlan, Image, Lab, LabOptions, Step, find_workload};
use fstitch_systems::Ext2System;

/// The error names a block, an inode or another place, if it is one of damage.
fn told(error: &Error, plan: &str) {
    if let Error::Corrupt(corruption) = error {
        let text = corruption.to_string();
        assert!(text.chars().any(|c| c.is_ascii_digit()), "{plan}: no place: {text}");
    }
}

/// Reads every name, attribute and byte that can be reached, damage or not; returns what failed.
fn read_everything(fs: &dyn FileSystem, plan: &str) -> Vec<Error> {
    let (mut failed, mut seen) = (vec![], std::collections::BTreeSet::new());
    let mut queue = vec![fs.root()];
    let mut note = |done: Result<()>| {
        if let Err(error) = done {
            told(&error, plan);
            failed.push(error);
        }
    };
    while let Some(dir) = queue.pop() {
        // Damage can make directories contain themselves.
        if !seen.insert(dir) {
            continue;
        }
        let mut names = vec![];
        note(fs.readdir(dir, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        }));
        for name in names.iter().filter(|name| ![&b"."[..], b".."].contains(&&name[..])) {
            note(fs.lookup(dir, name).and_then(|entry| {
                let ino = entry.attr.ino;
                if entry.attr.kind == FileKind::Directory {
                    queue.push(ino);
                }
                read_one(fs, ino)
            }));
        }
    }
    failed
}

fn read_one(fs: &dyn FileSystem, ino: InodeNo) -> Result<()> {
    let attr = fs.getattr(ino)?;
    fs.listxattr(ino)?;
    match attr.kind {
        FileKind::Regular => {
            let mut buffer = vec![0; 65_536];
            let mut at = 0;
            // A damaged size may be beyond anything that can be read in time.
            while at < attr.size.min(1 << 24) {
                match fs.read(ino, at, &mut buffer)? {
                    0 => break,
                    n => at += u64::try_from(n).unwrap(),
                }
            }
            Ok(())
        }
        FileKind::Symlink => fs.readlink(ino).map(drop),
        _ => Ok(()),
    }
}

/// Runs a workload on a medium that is dishonest, then looks at what it left.
fn survive(lab: &Lab, workload: &Workload, plan: &FaultPlan) -> u64 {
    let line = format!("{} with `{plan}`", workload.name);
    let device = Arc::new(FaultDevice::new(Image::new(Arc::clone(lab.base())), plan.clone()));
    if let Ok(mounted) = lab.system().mount(Arc::<FaultDevice<Image>>::clone(&device)) {
        let write_out = |choose: &mut dyn FnMut(Step) -> bool| mounted.write_out(choose);
        let mut target = Target::new(mounted.fs(), &write_out);
        for (no, op) in (0..).zip(workload.setup.iter().chain(&workload.ops)) {
            op.run(&mut target, no).unwrap_or_else(|error| told(&error, &line));
        }
        drop(target);
        read_everything(mounted.fs(), &line);
        mounted.fs().unmount().unwrap_or_else(|error| told(&error, &line));
    }
    let injected = device.injected().values().sum();
    device.set_plan(FaultPlan::default());
    look(lab, &device, &line);
    injected
}

/// Mounts, reads, changes, checks and repairs what is on the medium now.
fn look(lab: &Lab, device: &Arc<FaultDevice<Image>>, line: &str) {
    let device: Arc<dyn BlockDevice> = Arc::<FaultDevice<Image>>::clone(device);
    match lab.system().mount(Arc::clone(&device)) {
        Ok(mounted) => {
            let fs = mounted.fs();
            let failed = read_everything(fs, line);
            let damage = failed.iter().find(|error| matches!(error, Error::Corrupt(_)));
            let made = fs.mkdir(&Caller::default(), fs.root(), b"after the damage", 0o755);
            assert!(damage.is_none() || made.is_err(), "{line}: a change succeeds after {damage:?}");
            made.map(drop).unwrap_or_else(|error| told(&error, line));
            fs.sync().unwrap_or_else(|error| told(&error, line));
            fs.unmount().unwrap_or_else(|error| told(&error, line));
        }
        Err(error) => told(&error, line),
    }
    lab.system().check(&device).map(drop).unwrap_or_else(|error| told(&error, line));
    match lab.system().repair(&device) {
        Ok(left) => {
            // A volume of one group has no other superblock.
            if left.findings.iter().any(|finding| finding.code == "superblock-damaged") {
                return;
            }
            assert!(left.is_clean(), "{line}: repair leaves {:?}", left.findings);
            let mounted = lab.system().open(device).unwrap_or_else(|error| panic!("{line}: {error}"));
            let failed = read_everything(mounted.fs(), line);
            assert!(failed.is_empty(), "{line}: after the repair {failed:?}");
        }
        Err(error) => told(&error, line),
    }
}

#[test]
fn random_workloads_survive_dishonest_media() {
    let lab = Lab::new(Arc::new(Ext2System::default()), LabOptions::default()).unwrap();
    let defects = [
        "lost write",
        "torn write",
        "misdirected write",
        "corrupted=3 write",
        "corrupted=200 write",
        "corrupted=5 read",
        "lying",
    ];
    let mut injected = 0;
    for index in 0..5 {
        let workload = find_workload(&format!("random/{index}")).unwrap();
        for defect in defects {
            for (seed, every) in [(1, 5), (2, 17), (3, 61)] {
                let plan: FaultPlan =
                    format!("seed={seed}; {defect} nth={seed} every={every} times=all").parse().unwrap();
                injected += survive(&lab, &workload, &plan);
            }
        }
    }
    assert!(injected > 1_000, "{injected} faults");
}

//! What comes after a group comes after all that the group's changes need to be found.
//!
//! What it prevents: a change that is there after a crash although what it was to come after is in a file, or in a directory, that
//! nobody can reach.

use fstitch_core::FileSystem;
use fstitch_core::groups::{Engaged, GroupCall, GroupId};
use fstitch_patch::PatchState;

use crate::rig::{Rig, find};

/// Does something for a group.
fn work_in(rig: &Rig, group: GroupId, work: impl FnOnce(&Rig)) {
    rig.fs.group(GroupCall::Engage(group)).unwrap();
    {
        let _engaged = Engaged::enter(&[group]);
        work(rig);
    }
    rig.fs.group(GroupCall::Disengage(group)).unwrap();
}

#[test]
fn a_group_has_what_leads_to_its_files_although_others_made_it() {
    let rig = Rig::new();
    rig.create("x");
    rig.settle();
    let [one, two] = [0; 2].map(|_| rig.fs.group(GroupCall::Create).unwrap());
    // Nobody's: the directory that the file is in, and the one that this is in.
    rig.mkdir("p");
    rig.mkdir("p/q");
    rig.create("p/q/f");
    let made = rig.toy.take_events();
    work_in(&rig, one, |rig| rig.write("p/q/f", 0, 100));
    rig.fs.group(GroupCall::Depend { after: two, before: one }).unwrap();
    rig.toy.take_events();
    work_in(&rig, two, |rig| rig.truncate("x", 50));
    let after = rig.toy.take_events();
    rig.toy.cache().sync_patches(&[after[0].patch]).unwrap();
    for name in ["name p", "name q", "name f"] {
        assert_eq!(rig.state(find(&made, name)), PatchState::Committed, "{name}");
    }
}

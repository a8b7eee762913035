use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsFd;

use super::*;

thread_local! {
    /// How often this thread's test made everything stable.
    static SYNCS: Cell<u32> = const { Cell::new(0) };
}

fn counted(_: BorrowedFd<'_>) -> io::Result<()> {
    SYNCS.set(SYNCS.get() + 1);
    Ok(())
}

fn broken(_: BorrowedFd<'_>) -> io::Result<()> {
    Err(Errno::IO.into())
}

/// A volume that only has a place.
struct Setting {
    place: File,
    calls: Fsync,
}

impl Setting {
    fn new(make_stable: MakeStable) -> Self {
        SYNCS.set(0);
        Self { place: File::open("/").unwrap(), calls: Fsync::with(make_stable) }
    }

    fn create(&self) -> GroupNo {
        self.calls.create(self.place.as_fd()).unwrap()
    }

    fn call(&self, call: Call) -> Result<u32, i32> {
        let answer = self.calls.call(self.place.as_fd(), call);
        answer.map(|()| SYNCS.get()).map_err(|error| error.raw_os_error().unwrap())
    }
}

const EBADF: Result<u32, i32> = Err(9);
const EBUSY: Result<u32, i32> = Err(16);
const EINVAL: Result<u32, i32> = Err(22);

#[test]
fn what_changed_nothing_is_not_waited_for() {
    let setting = Setting::new(counted);
    let (first, second) = (setting.create(), setting.create());
    assert_eq!((first, second), (GroupNo(1), GroupNo(2)));
    assert_eq!(setting.call(Call::Depend { after: second, before: first }), Ok(0));
    assert_eq!(setting.call(Call::Sync(second)), Ok(0));
}

#[test]
fn changes_are_stable_before_the_group_that_depends_on_them_changes_anything() {
    let setting = Setting::new(counted);
    let (first, second, third) = (setting.create(), setting.create(), setting.create());
    assert_eq!(setting.call(Call::Engage(first)), Ok(0));
    assert_eq!(setting.call(Call::Depend { after: second, before: first }), EBUSY);
    assert_eq!(setting.call(Call::Engage(first)), EBUSY);
    assert_eq!(setting.call(Call::Disengage(first)), Ok(0));
    assert_eq!(setting.call(Call::Depend { after: second, before: first }), Ok(1));
    assert_eq!(setting.call(Call::Depend { after: third, before: first }), Ok(1), "it is stable already");
    assert_eq!(setting.call(Call::Engage(first)), EINVAL);
    assert_eq!(setting.call(Call::Close(first)), Ok(1));
    assert_eq!(setting.call(Call::Close(first)), EBADF);
    assert_eq!(setting.create(), first, "numbers are used again");
    assert_eq!(setting.call(Call::Depend { after: third, before: third }), EINVAL);
}

#[test]
fn a_group_that_is_engaged_is_never_taken_for_stable() {
    let setting = Setting::new(counted);
    let (first, second) = (setting.create(), setting.create());
    assert_eq!(setting.call(Call::EngageFile(first)), Ok(0));
    assert_eq!(setting.call(Call::Engage(first)), Ok(0));
    assert_eq!(setting.call(Call::Sync(first)), Ok(1));
    assert_eq!(setting.call(Call::DisengageFile(first)), Ok(1));
    assert_eq!(setting.call(Call::DisengageFile(first)), EINVAL);
    assert_eq!(setting.call(Call::Disengage(first)), Ok(1));
    assert_eq!(setting.call(Call::Depend { after: second, before: first }), Ok(2));
}

#[test]
fn a_failure_to_make_stable_leaves_no_dependency() {
    let setting = Setting::new(broken);
    let (first, second) = (setting.create(), setting.create());
    assert_eq!(setting.call(Call::Engage(first)), Ok(0));
    assert_eq!(setting.call(Call::Disengage(first)), Ok(0));
    assert_eq!(setting.call(Call::Depend { after: second, before: first }), Err(5));
    assert_eq!(setting.call(Call::Engage(first)), Ok(0), "it was not sealed");
}

#[test]
fn groups_have_a_limit() {
    let setting = Setting::new(counted);
    for _ in 0..GROUPS_MAX {
        setting.create();
    }
    let error = setting.calls.create(setting.place.as_fd()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
}

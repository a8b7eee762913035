use std::sync::{Arc, Mutex};

use super::*;

/// Remembers what was asked, and answers success.
#[derive(Clone, Debug, Default)]
struct Fake {
    asked: Arc<Mutex<Vec<Call>>>,
}

impl Calls for Fake {
    fn create(&self, _on: BorrowedFd<'_>) -> io::Result<GroupNo> {
        Ok(GroupNo(7))
    }

    fn call(&self, _on: BorrowedFd<'_>, call: Call) -> io::Result<()> {
        self.asked.lock().unwrap().push(call);
        Ok(())
    }

    fn order_users(&self, _on: BorrowedFd<'_>) -> io::Result<OrderUsers> {
        Ok(OrderUsers::default())
    }
}

fn faked(directory: &Path) -> (Volume, Fake) {
    let fake = Fake::default();
    let place = OwnedFd::from(File::open(directory).unwrap());
    (Volume::with(place, Box::new(fake.clone())), fake)
}

const NO: GroupNo = GroupNo(7);

#[test]
fn guards_end_what_they_began() {
    let directory = tempfile::tempdir().unwrap();
    let (volume, fake) = faked(directory.path());
    let file = tempfile::tempfile_in(directory.path()).unwrap();
    {
        let group = volume.group().unwrap();
        let _process = group.engage().unwrap();
        group.engage_file(&file).unwrap().end().unwrap();
        let _file = group.engage_file(&file).unwrap();
    }
    let file = [Call::EngageFile(NO), Call::DisengageFile(NO)];
    let expected =
        [Call::Engage(NO), file[0], file[1], file[0], file[1], Call::Disengage(NO), Call::Close(NO)];
    assert_eq!(*fake.asked.lock().unwrap(), expected);
}

#[test]
fn groups_and_files_of_other_volumes_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (here, asked) = faked(directory.path());
    let (there, _) = faked(directory.path());
    let other = File::open("/proc/self/stat").unwrap();
    let errno = |error: io::Error| Errno::from_io_error(&error);
    let (group, foreign) = (here.group().unwrap(), there.group().unwrap());
    assert_eq!(errno(group.depend_on(&foreign).unwrap_err()), Some(Errno::XDEV));
    assert_eq!(errno(group.engage_file(&other).unwrap_err()), Some(Errno::XDEV));
    assert!(asked.asked.lock().unwrap().is_empty());
}

#[test]
fn bounds_of_ordered_fsync_are_milliseconds() {
    let directory = tempfile::tempdir().unwrap();
    let (volume, fake) = faked(directory.path());
    volume.order_begin(None).unwrap();
    volume.order_begin(Some(Duration::from_secs(5))).unwrap();
    volume.order_every_change(None).unwrap();
    volume.order_end().unwrap();
    for wrong in [Duration::from_micros(1), Duration::from_secs(1 << 40)] {
        assert_eq!(volume.order_begin(Some(wrong)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    let begin = |every_change, durable_every_ms| Call::OrderBegin { every_change, durable_every_ms };
    let asked = [begin(false, 0), begin(false, 5000), begin(true, 0), Call::OrderEnd];
    assert_eq!(*fake.asked.lock().unwrap(), asked);
}

/// /proc never has patchgroups.
#[test]
fn elsewhere_waiting_must_be_asked_for() {
    let error = Volume::open("/proc/self/stat").unwrap_err();
    assert!(is_unsupported(&error), "{error}");
    let missing = Volume::open("/proc/none").unwrap_err();
    assert!(!is_unsupported(&missing), "{missing}");

    let directory = tempfile::tempdir().unwrap();
    let volume = Volume::open_or_fsync(directory.path()).unwrap();
    let (first, second) = (volume.group().unwrap(), volume.group().unwrap());
    {
        let _engaged = first.engage().unwrap();
        std::fs::write(directory.path().join("a"), "first").unwrap();
    }
    second.depend_on(&first).unwrap();
    first.engage().unwrap_err();
    second.sync().unwrap();
    assert_eq!(volume.order_users().unwrap(), OrderUsers::default());
}

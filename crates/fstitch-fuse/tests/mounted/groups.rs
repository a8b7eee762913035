//! Patchgroups through a real mount: whose changes belong to which groups, the errors of the calls, and that no program
//! can harm others with them. Programs are Python scripts, because the calls need `fork` and `ioctl`.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Mounted, mount, mount_with};
use crate::spy::Spy;

const CALLS: &str = include_str!("groups.py");

/// Mounts a file system that shows its groups.
fn mount_spy() -> Option<(Mounted, Arc<Spy>)> {
    let python = Command::new("python3").arg("--version").stdout(Stdio::null()).status();
    if python.is_err() {
        println!("skipped: python3 is missing");
        return None;
    }
    let spy = Arc::new(Spy::default());
    mount_with(Arc::clone(&spy) as _, |_| {}).map(|mounted| (mounted, spy))
}

fn command(mounted: &Mounted, script: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg("-c").arg(format!("{CALLS}\n{script}")).arg(mounted.root());
    command
}

/// Runs a script, which must end well.
fn run(mounted: &Mounted, script: &str) {
    let output = command(mounted, script).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until all groups have been given back.
fn all_given_back(spy: &Spy) {
    for _ in 0..1000 {
        if spy.groups.lock().unwrap().len() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("groups outlive their processes");
}

#[test]
fn threads_children_and_programs_inherit() {
    let Some((mounted, spy)) = mount_spy() else { return };
    run(
        &mounted,
        r"
touch('before')
p = create()
engage(p)
touch('parent')
thread = threading.Thread(target=touch, args=('thread',))
thread.start()
thread.join()
come, go = os.pipe()

def forked():
    os.close(go)
    os.read(come, 1)
    touch('forked')
    join(child(lambda: touch('grandchild')))
    os.execvp('sh', ['sh', '-c', ': > $0/executed; : > $0/again', ROOT])

it = child(forked)
# From here on the child's set and ours differ, though it has not been seen yet.
disengage(p)
touch('after')
join(child(lambda: touch('late')))
q = create()
fails(errno.EBUSY, depend, q, p)
os.close(go)
join(it)
depend(q, p)
engage(q)
touch('second')
",
    );
    let group = spy.made_for("parent");
    assert_eq!(group.len(), 1);
    for name in ["thread", "forked", "grandchild", "executed", "again"] {
        assert_eq!(spy.made_for(name), group, "{name}");
    }
    for name in ["before", "after", "late"] {
        assert_eq!(spy.made_for(name), [], "{name}");
    }
    let second = spy.made_for("second");
    assert_eq!(spy.groups.lock().unwrap().order, [(second[0], group[0])]);
    all_given_back(&spy);
}

#[test]
fn the_calls_answer_as_specified() {
    let Some((mounted, spy)) = mount_spy() else { return };
    run(
        &mounted,
        r"
assert version() == (1, 3, 1024, 0)
for each in engage, disengage, sync, close:
    fails(errno.EBADF, each, 1)
fails(errno.EINVAL, call, 0xC008F501, 1, 0)
fails(errno.ENOTTY, call, 0x4008F5FF, 1, 0)
fails(errno.EINVAL, order_end)
p, q = create(), create()
assert (p, q) == (1, 2)
fails(errno.EINVAL, disengage, p)
fails(errno.EINVAL, call, 0x4008F503, p, 1)
fails(errno.EINVAL, depend, p, p)
fails(errno.EBADF, depend, p, 77)
engage(p)
fails(errno.EBUSY, engage, p)
fails(errno.EBUSY, depend, q, p)
sync(p)
disengage(p)
engage(p)
disengage(p)
depend(q, p)
fails(errno.EINVAL, engage, p)
fails(errno.EINVAL, depend, p, q)
depend(q, p)
sync(p)
close(p)
fails(errno.EBADF, engage, p)
assert create() == p
# Closing disengages.
engage(q)
close(q)
touch('closed')
# One file only, through any descriptor of it and as long as the scope says.
f = create()
touch('one')
touch('other')
one, other = (os.open(ROOT + '/' + name, os.O_WRONLY) for name in ('one', 'other'))
engage_fd(f, one)
fails(errno.EBUSY, engage_fd, f, one)
os.write(one, b'1')
os.write(other, b'2')
disengage_fd(f, one)
fails(errno.EINVAL, disengage_fd, f, other)
os.write(one, b'3')
",
    );
    assert_eq!(spy.made_for("closed"), []);
    let groups: Vec<usize> = spy.written.lock().unwrap().iter().map(Vec::len).collect();
    assert_eq!(groups, [1, 0, 0]);
    all_given_back(&spy);
}

#[test]
fn fsync_orders_for_those_who_ask() {
    let Some((mounted, spy)) = mount_spy() else { return };
    run(
        &mounted,
        r"
order_begin(60000)
fails(errno.EBUSY, order_begin)
assert order_users() == [os.getpid()]
file = os.open(ROOT + '/file', os.O_CREAT | os.O_RDWR | os.O_SYNC, 0o644)
touch('one')
os.fsync(file)

def in_child():
    touch('two')
    os.fdatasync(file)
    assert order_users() == sorted([os.getpid(), os.getppid()])

join(child(in_child))
touch('three')
os.write(file, b'O_SYNC')
touch('four')
os.fsync(HERE)
",
    );
    assert_eq!((spy.count("fsync"), spy.count("sync")), (0, 0));
    let made: Vec<_> = ["one", "two", "three", "four"].map(|name| spy.made_for(name)[0]).to_vec();
    let order = spy.groups.lock().unwrap().order.clone();
    for pair in made.windows(2) {
        let mut later = pair[1];
        while let Some((_, earlier)) = order.iter().find(|(after, _)| *after == later && later != pair[0]) {
            later = *earlier;
        }
        assert!(later == pair[0] && pair[1] != pair[0], "{made:?} in {order:?}");
    }
    all_given_back(&spy);
    // Others, and whoever ends it, wait as ever.
    run(
        &mounted,
        "os.fsync(HERE)\norder_begin()\norder_end()\ntouch('x')\nos.fsync(os.open(ROOT + '/x', os.O_RDWR))",
    );
    assert_eq!((spy.count("fsync"), spy.count("sync")), (1, 1));
}

#[test]
fn a_mount_can_order_for_everybody() {
    let Some((_, _)) = mount_spy() else { return };
    let spy = Arc::new(Spy::default());
    let ordered = |options: &mut fstitch_fuse::MountOptions| options.apply("fsync=ordered").unwrap();
    let Some(mounted) = mount_with(Arc::clone(&spy) as _, ordered) else { return };
    run(&mounted, "touch('one')\nos.fsync(HERE)\ntouch('two')\nfails(errno.EBUSY, order_begin)");
    assert_eq!(spy.count("sync"), 0);
    let (one, two) = (spy.made_for("one")[0], spy.made_for("two")[0]);
    assert_eq!(spy.groups.lock().unwrap().order, [(two, one)]);
    mounted.end().unwrap();
    all_given_back(&spy);
}

#[test]
fn volumes_without_order_say_so() {
    let Some((_, _)) = mount_spy() else { return };
    let Some(mounted) = mount() else { return };
    run(
        &mounted,
        "assert version()[:2] == (1, 0)\nfails(errno.EOPNOTSUPP, create)\nfails(errno.EOPNOTSUPP, order_begin)\n\
         touch('x')\nos.fsync(HERE)",
    );
}

/// What a process does that wants to harm: groups without end, every number there is, children that are killed while
/// they have groups engaged, and work in between.
const HOSTILE: &str = r"
random.seed(int(sys.argv[2]))

def nonsense():
    number = 0xF500 | random.randrange(0x20)
    size = random.choice([0, 4, 8, 16, 256])
    number |= random.choice([0, 1, 2, 3]) << 30 | size << 16
    data = bytearray(random.randbytes(max(size, 8)))
    try:
        fcntl.ioctl(HERE, number, data)
    except OSError:
        pass

def groups():
    made = []
    try:
        while True:
            made.append(create())
    except OSError as error:
        assert error.errno in (errno.EMFILE, errno.ENOSPC), error
    for no in random.sample(made, 40):
        engage(no)

def run():
    try:
        groups()
        while True:
            nonsense()
            touch('hostile%d' % random.randrange(50))
            if random.random() < 0.1:
                os.fsync(HERE)
            if random.random() < 0.02:
                os.kill(child(lambda: (nonsense(), touch('x'), time.sleep(1))), signal.SIGKILL)
    except OSError as error:
        assert error.errno in (errno.EAGAIN, errno.ENFILE, errno.ENOSPC, errno.EBUSY), error

run()
time.sleep(60)
";

#[test]
fn hostile_processes_harm_nobody() {
    let Some((mounted, spy)) = mount_spy() else { return };
    let start = |seed: u32| {
        let mut command = command(&mounted, HOSTILE);
        command.arg(seed.to_string()).stdin(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap()
    };
    let mut hostile: Vec<_> = (0..6).map(start).collect();
    // Others work on, with groups and without.
    for round in 0..150 {
        let path = mounted.path(&format!("good{round}"));
        std::fs::write(&path, b"good").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"good");
        if round % 50 == 0 {
            run(&mounted, "p = create()\nengage(p)\ntouch('mine')\nclose(p)");
        }
        let broken = hostile.iter_mut().any(|process| process.try_wait().unwrap().is_some());
        assert!(!broken, "a hostile process met an error that it should not meet");
        std::thread::sleep(Duration::from_millis(10));
    }
    for mut process in hostile {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    all_given_back(&spy);
    run(&mounted, "assert create() == 1");
}

#[test]
fn what_waits_elsewhere_belongs_to_the_same_groups() {
    let Some((mounted, spy)) = mount_spy() else { return };
    spy.waits.store(true, std::sync::atomic::Ordering::Relaxed);
    run(
        &mounted,
        r"
p = create()
engage(p)
touch('made')
with open(os.path.join(ROOT, 'made'), 'wb', buffering=0) as file:
    file.write(b'1')
    disengage(p)
    file.write(b'2')
",
    );
    let group = spy.made_for("made");
    assert_eq!(group.len(), 1);
    assert_eq!(*spy.written.lock().unwrap(), [group, vec![]]);
}

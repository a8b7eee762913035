//! How connections begin and end, and what is left of them.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fstitch_nbd::{Kind, MemExport, Options, Server, Single, Stopped};

use crate::client::*;
use crate::exports::{Many, Odd, PANICS, WAITS};

const LIMIT: Duration = Duration::from_secs(30);

fn at(path: &std::path::Path) -> Client {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut client = Client { stream, is_extended: false };
    client.greet();
    client
}

/// Waits for what another thread is about to do.
fn soon(condition: impl Fn() -> bool) {
    for _ in 0..3000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it has not come true");
}

#[test]
fn several_listeners_serve_the_same() {
    let place = tempfile::tempdir().unwrap();
    let server = server(Arc::new(MemExport::new(4096)));
    let paths = ["a", "b"].map(|name| place.path().join(name));
    for path in &paths {
        server.listen_unix(path).unwrap();
    }
    let address = server.listen_tcp("127.0.0.1:0").unwrap();
    let (mut first, mut second) = (at(&paths[0]), at(&paths[1]));
    first.go("");
    second.go("");
    first.write(7, b"seen");
    assert_eq!(second.read(7, 4), b"seen");
    let tcp = TcpStream::connect(address).unwrap();
    soon(|| server.connections() == 3);
    drop(tcp);
    soon(|| server.connections() == 2);
    assert_eq!(server.stop(LIMIT), Stopped { cut: 0, working: 0 });
    assert!(first.is_closed() && second.is_closed());
    assert!(TcpStream::connect(address).is_err());
    assert!(paths.iter().all(|path| !path.exists()), "they are removed");
}

#[test]
fn a_socket_that_nobody_listens_at_is_replaced() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("socket");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let first = server(Arc::new(MemExport::new(1)));
    first.listen_unix(&path).unwrap();
    let second = server(Arc::new(MemExport::new(2)));
    assert_eq!(second.listen_unix(&path).unwrap_err().kind(), ErrorKind::AddrInUse);
    assert_eq!(at(&path).go("").0, 1);
}

#[test]
fn a_stop_answers_what_is_in_flight() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("socket");
    let export = Arc::new(Odd::new());
    let gate = Arc::clone(&export.gate);
    let server = server(export);
    server.listen_unix(&path).unwrap();
    let mut client = at(&path);
    client.go("");
    for cookie in 0..5 {
        client.ask(FUA, WRITE, cookie, (WAITS, 3), b"abc");
    }
    gate.wait_for(5);
    // These lie in the socket, or are taken already; they were sent before the stop.
    for cookie in 5..10 {
        client.ask(0, FLUSH, cookie, (0, 0), &[]);
    }
    std::thread::scope(|scope| {
        let stop = scope.spawn(|| server.stop(LIMIT));
        soon(|| !path.exists());
        assert!(!stop.is_finished());
        gate.open();
        assert_eq!(stop.join().unwrap(), Stopped { cut: 0, working: 0 });
    });
    let mut cookies: Vec<_> = (0..10).map(|_| client.chunk(0).cookie).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..10).collect::<Vec<_>>());
    assert!(client.is_closed());
    assert_eq!(server.stop(LIMIT), Stopped { cut: 0, working: 0 }, "a second time");
}

#[test]
fn a_stop_ends_in_time_whatever_exports_do() {
    let export = Arc::new(Odd::new());
    let gate = Arc::clone(&export.gate);
    let server = server(export);
    let (mut client, thread) = connect(&server);
    client.greet();
    client.go("");
    client.ask(0, WRITE, 1, (WAITS, 3), b"abc");
    gate.wait_for(1);
    assert_eq!(server.stop(Duration::from_millis(50)), Stopped { cut: 1, working: 1 });
    assert!(client.is_closed());
    gate.open();
    thread.join().unwrap();
    assert_eq!(server.connections(), 0);
    let (mut late, _) = connect(&server);
    assert!(late.is_closed());
}

#[test]
fn a_stop_does_not_wait_for_clients_that_go_on_for_ever() {
    let server = server(Arc::new(MemExport::new(1 << 20)));
    let address = server.listen_tcp("127.0.0.1:0").unwrap();
    let (mut idle, _) = connect(&server);
    idle.greet();
    let mut busy = TcpStream::connect(address).unwrap();
    let thread = std::thread::spawn(move || {
        use std::io::Write;
        let mut said = 3_u32.to_be_bytes().to_vec();
        said.extend(b"IHAVEOPT\0\0\0\x01\0\0\0\0");
        let mut trim = vec![0x25, 0x60, 0x95, 0x13, 0, 0, 0, 4];
        trim.extend([0; 16]);
        trim.extend(512_u32.to_be_bytes());
        let mut reader = busy.try_clone().unwrap();
        std::thread::spawn(move || while reader.read(&mut [0; 4096]).is_ok_and(|len| len > 0) {});
        busy.write_all(&said).unwrap();
        while busy.write_all(&trim).is_ok() {}
    });
    soon(|| server.stats().requests(Kind::Trim) > 1000);
    assert_eq!(server.stop(LIMIT), Stopped { cut: 0, working: 0 });
    thread.join().unwrap();
}

#[test]
fn a_connection_that_is_lost_drops_its_export_after_its_last_request() {
    let many = Arc::new(Many::default());
    let exports: Arc<dyn fstitch_nbd::Exports> = many.clone();
    let server = Arc::new(Server::new(exports, Options::default()).unwrap());
    let (mut client, thread) = connect(&server);
    client.greet();
    client.go("odd");
    client.ask(0, WRITE, 1, (WAITS, 3), b"abc");
    many.gate.wait_for(1);
    // In the middle of a request, too.
    client.put(&[0x25, 0x60, 0x95]);
    drop(client);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(many.dropped.load(Ordering::SeqCst), 0, "its request is still at work");
    many.gate.open();
    thread.join().unwrap();
    assert_eq!(many.dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn disconnecting_answers_what_was_asked_before() {
    let export = Arc::new(Odd::new());
    let gate = Arc::clone(&export.gate);
    let mut client = ready(export, false);
    client.ask(0, WRITE, 1, (WAITS, 3), b"abc");
    client.ask(0, DISC, 2, (0, 0), &[]);
    gate.wait_for(1);
    gate.open();
    assert_eq!(client.chunk(0).cookie, 1);
    assert!(client.is_closed());
}

#[test]
fn a_bug_in_an_export_ends_its_connection_only() {
    let export = Arc::new(Odd::new());
    let server = server(export);
    let (mut other, _) = connect(&server);
    other.greet();
    other.go("");
    for warm in [false, true] {
        let (mut client, thread) = connect(&server);
        client.greet();
        client.go("");
        if warm {
            // By now writes are known to be short, and are done by the thread that reads.
            client.write(0, b"x");
        }
        client.ask(0, WRITE, 1, (PANICS, 3), b"abc");
        assert!(client.is_closed());
        thread.join().unwrap();
    }
    assert_eq!(server.stats().panics.get(), 2);
    other.write(0, b"still there");
    assert_eq!(server.connections(), 1);
}

#[test]
fn there_are_so_many_connections_and_no_more() {
    let options = Options { connections_max: 3, ..Options::default() };
    let export = Arc::new(Single(Arc::new(MemExport::new(1))));
    let server = Arc::new(Server::new(export, options).unwrap());
    let mut clients: Vec<_> = (0..3).map(|_| connect(&server)).collect();
    clients.iter_mut().for_each(|(client, _)| client.greet());
    let (mut refused, _) = connect(&server);
    assert!(refused.is_closed());
    assert_eq!(server.stats().refused.get(), 1);
    let (client, thread) = clients.pop().unwrap();
    drop(client);
    thread.join().unwrap();
    let (mut admitted, _) = connect(&server);
    admitted.greet();
}

#[test]
fn flushes_and_fua_reach_the_export() {
    let export = Arc::new(Odd::new());
    let mut client = ready(export.clone(), false);
    for count in 1..=20 {
        assert_eq!(client.errno(0, FLUSH, (0, 0), &[]), 0);
        assert_eq!(client.errno(FUA, WRITE, (0, 3), b"abc"), 0);
        // The default for zeros is to write them and to flush.
        assert_eq!(client.errno(FUA, WRITE_ZEROES, (0, 512), &[]), 0);
        assert_eq!(client.errno(0, WRITE, (0, 3), b"abc"), 0);
        assert_eq!(export.flushes.load(Ordering::SeqCst), 3 * count);
    }
}

#[test]
fn nothing_is_acknowledged_before_the_export_has_returned() {
    let export = Arc::new(Odd::new());
    let gate = Arc::clone(&export.gate);
    let mut client = ready(export, false);
    client.ask(FUA, WRITE, 1, (WAITS, 3), b"abc");
    gate.wait_for(1);
    client.stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let early = client.stream.read(&mut [0]);
    assert!(early.is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
    client.stream.set_read_timeout(Some(LIMIT)).unwrap();
    gate.open();
    assert_eq!(client.chunk(0).cookie, 1);
}

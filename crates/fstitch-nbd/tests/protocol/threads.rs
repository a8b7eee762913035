//! Several requests at once, in every order.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::Seed;
use fstitch_nbd::{Kind, MemExport, Options, Server, Single};

use crate::client::*;
use crate::exports::{Odd, WAITS};

#[test]
fn a_slow_request_does_not_keep_others_waiting() {
    let export = Arc::new(Odd::new());
    let gate = Arc::clone(&export.gate);
    let mut client = ready(export, false);
    for cookie in [1, 2] {
        client.ask(0, WRITE, cookie, (WAITS, 3), b"abc");
    }
    for _ in 0..100 {
        assert_eq!(client.read(0, 1), [0]);
    }
    assert_eq!(client.errno(0, FLUSH, (0, 0), &[]), 0);
    gate.wait_for(2);
    gate.open();
    let mut cookies = [client.chunk(0).cookie, client.chunk(0).cookie];
    cookies.sort_unstable();
    assert_eq!(cookies, [1, 2]);
}

#[test]
fn so_many_requests_are_worked_on_and_no_more() {
    for requests_max in [1, 3] {
        let export = Arc::new(Odd::new());
        let gate = Arc::clone(&export.gate);
        let options = Options { requests_max, ..Options::default() };
        let server = Arc::new(Server::new(Arc::new(Single(export)), options).unwrap());
        let (mut client, _) = connect(&server);
        client.greet();
        client.go("");
        for cookie in 0..10 {
            client.ask(0, WRITE, cookie, (WAITS, 1), b"x");
        }
        gate.wait_for(requests_max);
        gate.open();
        let mut cookies: Vec<_> = (0..10).map(|_| client.chunk(0).cookie).collect();
        cookies.sort_unstable();
        assert_eq!(cookies, (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn long_requests_are_admitted_as_memory_allows() {
    const LONG: usize = 1 << 20;
    let options = Options { held_max: 3 << 20, ..Options::default() };
    let export = Arc::new(Single(Arc::new(MemExport::new(64 << 20))));
    let server = Arc::new(Server::new(export, options).unwrap());
    let (mut client, _) = connect(&server);
    client.greet();
    client.go("");
    let mut sender = Client { stream: client.stream.try_clone().unwrap(), is_extended: false };
    let thread = std::thread::spawn(move || {
        for index in 0..32 {
            let bytes = vec![u8::try_from(index).unwrap(); LONG];
            sender.ask(0, WRITE, index, (index << 20, 1 << 20), &bytes);
        }
    });
    let mut cookies: Vec<_> = (0..32).map(|_| client.chunk(0).cookie).collect();
    thread.join().unwrap();
    cookies.sort_unstable();
    assert_eq!(cookies, (0..32).collect::<Vec<_>>());
    for index in 0..32_u8 {
        assert!(client.read(u64::from(index) << 20, LONG) == vec![index; LONG]);
    }
}

/// Random requests with many in flight: each is answered once, and what is read is what was written there last.
#[test]
fn many_in_flight_on_many_connections() {
    let server = server(Arc::new(MemExport::new(1 << 24)));
    std::thread::scope(|scope| {
        for no in 0..6_u64 {
            let server = &server;
            scope.spawn(move || {
                let (mut client, _) = connect(server);
                client.greet();
                client.option(STRUCTURED_REPLY, &[]);
                client.go("");
                stream_of_requests(&mut client, no);
            });
        }
    });
    assert_eq!(server.stats().requests(Kind::Write), 6 * 400);
    assert_eq!(server.stats().errors.get(), 0);
}

/// Writes of various lengths in waves, each wave answered in any order, and then read again. Each client has its own 2 MiB.
fn stream_of_requests(client: &mut Client, no: u64) {
    let mut random = Seed::new(no + 1);
    for wave in 0..25_u64 {
        let mut places = BTreeMap::new();
        for cookie in 0..16 {
            let len = match random.below(4) {
                0 => 100_000,
                1 => 4096,
                _ => random.below(5000) + 1,
            };
            let offset = (no << 21) + (cookie << 17);
            let byte = u8::try_from((wave * 16 + cookie) % 251).unwrap();
            let bytes = vec![byte; usize::try_from(len).unwrap()];
            client.ask(0, WRITE, cookie, (offset, len), &bytes);
            places.insert(cookie, (offset, bytes));
        }
        for _ in 0..16 {
            let reply = client.chunk(0);
            assert!(places.contains_key(&reply.cookie) && reply.bytes == [0; 4], "{reply:?}");
        }
        for (offset, bytes) in places.into_values() {
            assert!(client.read_chunks(0, offset, bytes.len()).0 == bytes);
        }
    }
}

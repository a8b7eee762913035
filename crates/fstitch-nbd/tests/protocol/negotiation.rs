//! Every option, rightly and wrongly.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fstitch_nbd::{BlockSizes, MemExport, Options, Server};

use crate::client::*;
use crate::exports::Many;

fn many() -> (Arc<Many>, Client) {
    let many = Arc::new(Many::default());
    let exports: Arc<dyn fstitch_nbd::Exports> = many.clone();
    let server = Arc::new(Server::new(exports, Options::default()).unwrap());
    let (mut client, _) = connect(&server);
    client.greet();
    (many, client)
}

#[test]
fn the_oldest_way_to_choose() {
    for (flags, padding) in [(1_u32, 124), (3, 0)] {
        let (mut client, _) = connect(&server(Arc::new(MemExport::new(5000))));
        assert_eq!(client.take::<18>()[16..], [0, 3]);
        client.put(&flags.to_be_bytes());
        client.put_option(EXPORT_NAME, b"anything");
        assert_eq!(client.u64(), 5000);
        let flags = client.u16();
        assert_eq!(flags & 0b1, 1);
        assert!(client.take_vec(padding).iter().all(|&byte| byte == 0));
        client.write(1, b"abc");
        assert_eq!(client.read(0, 5), b"\0abc\0");
    }
}

#[test]
fn a_name_that_is_not_there_closes_the_oldest_way() {
    let (_, mut client) = many();
    client.put_option(EXPORT_NAME, b"none");
    assert!(client.is_closed());
}

#[test]
fn unknown_flags_of_a_client_end_it() {
    let (mut client, _) = connect(&server(Arc::new(MemExport::new(1))));
    client.take::<18>();
    client.put(&7_u32.to_be_bytes());
    assert!(client.is_closed());
}

#[test]
fn the_list_has_names_and_descriptions() {
    let (_, mut client) = many();
    let answers = client.option(LIST, &[]);
    assert_eq!(answers[0], (2, b"\0\0\0\x03oddit is odd".to_vec()));
    assert_eq!(answers[1], (2, "\0\0\0\x04ödd".as_bytes().to_vec()));
    assert_eq!(answers[2..], [(ACK, vec![])]);
    assert_eq!(client.refused(LIST, b"x"), 3);
}

#[test]
fn abort_is_acknowledged_and_closes() {
    let (_, mut client) = many();
    assert_eq!(client.option(ABORT, &[]), [(ACK, vec![])]);
    assert!(client.is_closed());
}

#[test]
fn what_is_not_there_is_refused_politely() {
    let (_, mut client) = many();
    assert_eq!(client.refused(STARTTLS, &[]), 2);
    assert_eq!(client.refused(STARTTLS, b"x"), 3);
    assert_eq!(client.refused(4, &[]), 1, "peeking was never specified");
    assert_eq!(client.refused(1234, b"whatever"), 1);
    assert_eq!(client.refused(1234, &vec![7; 100_000]), 9, "too long to look at");
    assert_eq!(client.refused(INFO, &wanted("none", &[])), 6);
    assert_eq!(client.refused(GO, &wanted("secret", &[])), 2);
    assert_eq!(client.refused(GO, b"\0\0"), 3);
    assert_eq!(client.refused(GO, &wanted("a\0b", &[])), 3);
    // After all this it still works.
    assert_eq!(client.go("odd").0, 4 << 20);
}

#[test]
fn info_tells_all_and_changes_nothing() {
    let blocks = BlockSizes { minimum: 512, preferred: 8192, maximum: 1 << 20 };
    let (mut client, _) = connect(&server(Arc::new(MemExport::with_blocks(5000, blocks))));
    client.greet();
    let answers = client.option(INFO, &wanted("some name", &[3, 1, 2, 999]));
    assert_eq!(answers[0].1[..10], [0, 0, 0, 0, 0, 0, 0, 0, 18, 0], "whole blocks of 512 only");
    assert_eq!(answers[1], (3, b"\0\x01some name".to_vec()));
    assert_eq!(answers[2], (3, b"\0\x02sparse memory".to_vec()));
    assert_eq!(answers[3], (3, b"\0\x03\0\0\x02\0\0\0\x20\0\0\x10\0\0".to_vec()));
    assert_eq!(answers[4..], [(ACK, vec![])]);
    assert_eq!(client.go("").0, 4608);
}

#[test]
fn looking_and_choosing_are_one_opening() {
    let (many, mut client) = many();
    client.option(STRUCTURED_REPLY, &[]);
    client.option(INFO, &wanted("odd?aru=1", &[]));
    client.option(SET_META_CONTEXT, &contexts("odd?aru=1", &["base:allocation"]));
    client.option(INFO, &wanted("odd?aru=1", &[]));
    assert_eq!((many.opened.load(Ordering::SeqCst), many.dropped.load(Ordering::SeqCst)), (1, 0));
    client.option(INFO, &wanted("odd", &[]));
    assert_eq!((many.opened.load(Ordering::SeqCst), many.dropped.load(Ordering::SeqCst)), (2, 1));
    client.go("odd");
    assert_eq!((many.opened.load(Ordering::SeqCst), many.dropped.load(Ordering::SeqCst)), (2, 1));
}

#[test]
fn metadata_contexts_need_structured_replies() {
    let (_, mut client) = many();
    for option in [LIST_META_CONTEXT, SET_META_CONTEXT] {
        assert_eq!(client.refused(option, &contexts("odd", &["base:allocation"])), 3);
    }
    assert_eq!(client.refused(STRUCTURED_REPLY, b"x"), 3);
    client.option(STRUCTURED_REPLY, &[]);
    client.option(STRUCTURED_REPLY, &[]);
    let context = |id: u8| (4, [&[0, 0, 0, id][..], b"base:allocation"].concat());
    let ack = (ACK, vec![]);
    let listed =
        |client: &mut Client, queries: &[&str]| client.option(LIST_META_CONTEXT, &contexts("odd", queries));
    assert_eq!(listed(&mut client, &[]), [context(0), ack.clone()]);
    assert_eq!(listed(&mut client, &["x:y", "base:"]), [context(0), ack.clone()]);
    assert_eq!(listed(&mut client, &["x:y"]), std::slice::from_ref(&ack));
    let chosen =
        |client: &mut Client, queries: &[&str]| client.option(SET_META_CONTEXT, &contexts("odd", queries));
    assert_eq!(chosen(&mut client, &["base:"]), std::slice::from_ref(&ack));
    assert_eq!(chosen(&mut client, &["x:y", "base:allocation"]), [context(1), ack.clone()]);
    assert_eq!(client.refused(SET_META_CONTEXT, &contexts("none", &["base:allocation"])), 6);
    assert_eq!(client.refused(SET_META_CONTEXT, b"\0\0\0\0\xff\xff\xff\xff"), 3);
}

#[test]
fn a_context_is_chosen_for_one_name() {
    for (name, expected) in [("odd", 0), ("other", 22)] {
        let (_, mut client) = many();
        client.option(STRUCTURED_REPLY, &[]);
        client.option(SET_META_CONTEXT, &contexts(name, &["base:allocation"]));
        client.go("odd");
        assert_eq!(client.errno(0, BLOCK_STATUS, (0, 4096), &[]), expected, "chosen for {name}");
    }
}

#[test]
fn extended_headers_end_the_choice_of_dialects() {
    let (_, mut client) = many();
    assert_eq!(client.refused(EXTENDED_HEADERS, b"x"), 3);
    assert_eq!(client.option(EXTENDED_HEADERS, &[]), [(ACK, vec![])]);
    assert_eq!(client.refused(STRUCTURED_REPLY, &[]), 10);
    client.put_option(EXPORT_NAME, b"odd");
    assert!(client.is_closed(), "the oldest way knows nothing of them");
}

#[test]
fn a_client_cannot_ask_for_ever() {
    let options = Options { options_max: 10, ..Options::default() };
    let server = Arc::new(Server::new(Arc::new(Many::default()), options).unwrap());
    let (mut client, thread) = connect(&server);
    client.greet();
    for _ in 0..10 {
        client.refused(99, &[]);
    }
    assert!(client.is_closed());
    thread.join().unwrap();
    assert_eq!(server.stats().malformed.get(), 1);
}

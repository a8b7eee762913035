//! Serves sparse memory at a Unix socket, or a TCP address if it has a colon, until a signal comes:
//! `cargo run --release -p fstitch-nbd --example served_memory -- /tmp/nbd.sock 1073741824`, then `nbdinfo nbd+unix:///?socket=/tmp/nbd.sock`.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use fstitch_nbd::{Kind, MemExport, Options, Server, Single};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().ok_or("usage: memory SOCKET|ADDRESS [BYTES]")?;
    let size = arguments.next().map_or(Ok(1 << 30), |size| size.parse())?;
    let server = Server::new(Arc::new(Single(Arc::new(MemExport::new(size)))), Options::default())?;
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    if place.contains(':') {
        println!("{}", server.listen_tcp(place)?);
    } else {
        server.listen_unix(&place)?;
        println!("{place}");
    }
    signals.forever().next();
    let stopped = server.stop(Duration::from_secs(5));
    for kind in Kind::ALL {
        println!("{kind:?}: {}", server.stats().requests(kind));
    }
    println!("{stopped:?}");
    Ok(())
}

//! A consumer of a queue over HTTP, which runs one job at a time; start several to run more.
//! docs/howto/http-consumers.md has the protocol.
//!
//! Needs the crates reqwest (features blocking and json), serde (feature derive), serde_json and
//! urlencoding.

use reqwest::blocking::{Client, Response};
use serde::Deserialize;
use serde_json::{json, Value};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::{thread, time::Duration};

const LEASE: u64 = 30; // seconds

#[derive(Deserialize)]
struct Claim {
    id: String,
    item: Value,
    token: String,
}

#[derive(Deserialize)]
struct Claims {
    claims: Vec<Claim>,
}

struct Queue {
    client: Client,
    route: String,
    token: String,
}

impl Queue {
    fn new(server: &str, name: &str, token: &str) -> reqwest::Result<Self> {
        let timeout = Duration::from_secs(60); // longer than a long poll
        Ok(Queue {
            client: Client::builder().timeout(timeout).build()?,
            route: format!("{server}/v1/queues/{}", urlencoding::encode(name)),
            token: token.to_owned(),
        })
    }

    /// Repeat a request while the server cannot answer it.
    fn post(&self, action: &str, body: &Value) -> Response {
        let url = format!("{}/{action}", self.route);
        let mut pause = 1;
        loop {
            let request = self.client.post(&url).json(body);
            match request.bearer_auth(&self.token).send() {
                Ok(answer) if answer.status() != 429 && !answer.status().is_server_error() => {
                    return answer;
                }
                _ => thread::sleep(Duration::from_secs(pause)),
            }
            pause = (2 * pause).min(30);
        }
    }

    /// Run a handler on each job. It should end early once the flag says that the lease is lost.
    fn consume(
        &self,
        handle: impl Fn(&Claim, &AtomicBool) -> Result<Value, String>,
    ) -> reqwest::Result<()> {
        loop {
            let answer = self.post("claim", &json!({"wait": 20, "lease": LEASE}));
            for claim in answer.error_for_status()?.json::<Claims>()?.claims {
                self.work(&claim, &handle);
            }
        }
    }

    fn work(&self, claim: &Claim, handle: impl Fn(&Claim, &AtomicBool) -> Result<Value, String>) {
        let lost = &AtomicBool::new(false);
        let (done, is_done) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                let third = Duration::from_secs(LEASE) / 3;
                let body = json!({"token": claim.token, "lease": LEASE});
                while is_done.recv_timeout(third) == Err(RecvTimeoutError::Timeout) {
                    if self.post("extend", &body).status() == 409 {
                        lost.store(true, Ordering::Relaxed);
                        return;
                    }
                }
            });
            let outcome = handle(claim, lost);
            drop(done);
            if lost.load(Ordering::Relaxed) {
                return eprintln!("{}: the lease was lost", claim.id);
            }
            let answer = match outcome {
                Ok(result) => self.post("ack", &json!({"token": claim.token, "result": result})),
                Err(error) => self.post("nack", &json!({"token": claim.token, "error": error})),
            };
            if !answer.status().is_success() {
                eprintln!("{}: {}", claim.id, answer.status());
            }
        });
    }
}

fn main() -> reqwest::Result<()> {
    let queue = Queue::new("http://127.0.0.1:8080", "mail", "")?;
    queue.consume(|claim, _lost| {
        println!("{}", claim.item);
        Ok(Value::Null)
    })
}

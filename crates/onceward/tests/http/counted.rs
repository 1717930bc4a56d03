//! What the observer hears of the layer, and the observer itself.

use onceward::http::{KeyRule, Policy};
use onceward::{
    RecordId,
    engine::{Observation, Observer},
};
use tokio::sync::watch;

use super::{builder, memory, post, without, world_with};

/// Notes everything that it hears but the store's own affairs.
pub struct Heard(watch::Sender<Vec<(String, Observation)>>);

impl Default for Heard {
    fn default() -> Self {
        Self(watch::channel(Vec::new()).0)
    }
}

impl Observer for Heard {
    fn observe(&self, route: &str, _: RecordId, what: Observation) {
        self.0.send_modify(|heard| heard.push((route.to_owned(), what)));
    }
}

impl Heard {
    /// Waits until something was heard, and forgets everything.
    pub async fn take(&self, what: Observation) -> Vec<Observation> {
        let mut heard = self.0.subscribe();
        heard.wait_for(|heard| heard.iter().any(|(_, heard)| *heard == what)).await.unwrap();
        self.all()
    }

    pub fn all(&self) -> Vec<Observation> {
        self.0.send_replace(Vec::new()).into_iter().map(|(_, what)| what).collect()
    }

    pub fn routes(&self) -> Vec<String> {
        self.0.borrow().iter().map(|(route, _)| route.clone()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_suspicious_key_is_counted_once_for_each_execution() {
    let heard = std::sync::Arc::new(Heard::default());
    let world = world_with(builder(memory()).observer(heard.clone()), Policy::new()).await;
    world.send(post("order-17", "{}")).await;
    let short = heard.all();
    assert_eq!(short.iter().filter(|what| **what == Observation::SuspiciousKey).count(), 1, "{short:?}");
    for key in ["order-17", "018f4d5e-7c2a-7b3e-9f10-2a6b8c1d0e4f"] {
        world.send(post(key, "{}")).await;
        assert!(!heard.all().contains(&Observation::SuspiciousKey), "{key}");
    }
    world.send(post("\"ada.lovelace@example.org\"", "{}")).await;
    assert!(heard.all().contains(&Observation::SuspiciousKey));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_before_any_look_is_counted() {
    let heard = std::sync::Arc::new(Heard::default());
    let required = Policy::new().key(KeyRule::Required);
    let world = world_with(builder(memory()).observer(heard.clone()), required).await;
    for (request, what) in [
        (without(post("k", "{}"), "idempotency-key"), Observation::KeyMissing),
        (post("a,b", "{}"), Observation::KeyInvalid),
        (without(post("k", "{}"), "x-tenant"), Observation::ScopeMissing),
    ] {
        world.send(request).await;
        assert_eq!((heard.routes(), heard.all()), (vec!["default".to_owned()], vec![what]));
    }
}

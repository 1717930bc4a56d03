//! The layer's observations, and the observer that these tests use.

use onceward::http::{KeyRule, Policy};
use onceward::{
    RecordId,
    engine::{Observation, Observer},
};
use tokio::sync::watch;

use super::{builder, memory, post, without, world_with};

/// An observer that records every observation.
pub struct Observations(watch::Sender<Vec<(String, Observation)>>);

impl Default for Observations {
    fn default() -> Self {
        Self(watch::channel(Vec::new()).0)
    }
}

impl Observer for Observations {
    fn observe(&self, route: &str, _: RecordId, what: Observation) {
        self.0.send_modify(|observations| observations.push((route.to_owned(), what)));
    }
}

impl Observations {
    /// Waits for an observation, and then takes out all of them.
    pub async fn take(&self, what: Observation) -> Vec<Observation> {
        let mut observations = self.0.subscribe();
        observations
            .wait_for(|observations| observations.iter().any(|(_, observations)| *observations == what))
            .await
            .unwrap();
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
    let observations = std::sync::Arc::new(Observations::default());
    let world = world_with(builder(memory()).observer(observations.clone()), Policy::new()).await;
    world.send(post("order-17", "{}")).await;
    let short = observations.all();
    assert_eq!(short.iter().filter(|what| **what == Observation::SuspiciousKey).count(), 1, "{short:?}");
    for key in ["order-17", "018f4d5e-7c2a-7b3e-9f10-2a6b8c1d0e4f"] {
        world.send(post(key, "{}")).await;
        assert!(!observations.all().contains(&Observation::SuspiciousKey), "{key}");
    }
    world.send(post("\"ada.lovelace@example.org\"", "{}")).await;
    assert!(observations.all().contains(&Observation::SuspiciousKey));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_refused_before_the_store_is_read_is_counted() {
    let observations = std::sync::Arc::new(Observations::default());
    let required = Policy::new().key(KeyRule::Required);
    let world = world_with(builder(memory()).observer(observations.clone()), required).await;
    for (request, what) in [
        (without(post("k", "{}"), "idempotency-key"), Observation::KeyMissing),
        (post("a,b", "{}"), Observation::KeyInvalid),
        (without(post("k", "{}"), "x-tenant"), Observation::ScopeMissing),
    ] {
        world.send(request).await;
        assert_eq!((observations.routes(), observations.all()), (vec!["default".to_owned()], vec![what]));
    }
}

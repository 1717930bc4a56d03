//! Whether an absence means anything. A mistyped path, a token that cannot see the tenant and a search that lags all say that there
//! is no trace. So the same question must find an operation that is known to be there, and find no trace once more after that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::finders::BY;
use super::{CompletedOperation, Finding, Reconciler, UnknownOperation};
use crate::engine::observe::{FindResult, Observation};
use crate::engine::{EngineError, Inner};
use crate::record::{Naming, Record, State, StateKind};
use crate::store::{Filter, Scan, Which};
use crate::{RecordId, Timestamp};

/// Known operations that are asked for until one is found: each may be too old for the service's list.
pub(super) const CONTROLS_MAX: u32 = 3;
/// Pages of the store that are searched for known operations.
const PAGES_MAX: usize = 4;
/// Routes and scopes whose last successful control is remembered. Others are searched for again.
const REMEMBERED_MAX: usize = 1024;

/// The operations that controls have found, by route and scope.
#[derive(Default)]
pub(super) struct Controls(Mutex<HashMap<(String, String), CompletedOperation>>);

impl Controls {
    fn of(&self, unknown: &Record) -> Option<CompletedOperation> {
        let known =
            self.lock().get(&(unknown.subject.route.clone(), unknown.subject.scope.clone())).cloned()?;
        (known.record.opened < unknown.opened).then_some(known)
    }

    /// Only one of the same scope, so that one of another does not stand before it later.
    fn remember(&self, unknown: &Record, known: CompletedOperation) {
        if known.record.subject.scope != unknown.subject.scope {
            return;
        }
        let mut controls = self.lock();
        if controls.len() >= REMEMBERED_MAX {
            controls.clear();
        }
        controls.insert((unknown.subject.route.clone(), unknown.subject.scope.clone()), known);
    }

    fn forget(&self, unknown: &Record) {
        self.lock().remove(&(unknown.subject.route.clone(), unknown.subject.scope.clone()));
    }

    // A panic while the lock is held cannot leave half an entry.
    fn lock(&self) -> MutexGuard<'_, HashMap<(String, String), CompletedOperation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// What an absence becomes when it was controlled. Without a control it decides nothing.
    pub(super) async fn controlled(
        &self,
        reconciler: &dyn Reconciler,
        unknown: &UnknownOperation,
    ) -> Result<Finding, String> {
        let route = &unknown.record.subject.route;
        let known = self.known_before(unknown).await.map_err(|error| {
            format!("no operation could be read that is known to be there, for comparison: {error}")
        })?;
        if known.is_empty() {
            return Ok(self.uncontrolled(
                unknown,
                "no operation of its route was completed before it that could be found in the same way",
            ));
        }
        for known in known.into_iter().take(CONTROLS_MAX as usize) {
            if let Finding::Completed(_) = self.limited(async { reconciler.control(&known).await }).await? {
                self.finders.controls.remember(&unknown.record, known);
                return self.limited(async { reconciler.find(unknown).await }).await;
            }
            tracing::debug!(route, operation = %known.operation, "a completed operation was not found for comparison");
        }
        // The one that was found before may be too old by now: others are searched for the next time.
        self.finders.controls.forget(&unknown.record);
        let why = "operations that were completed before it are not found in the same way either";
        Ok(self.uncontrolled(unknown, why))
    }

    fn uncontrolled(&self, unknown: &UnknownOperation, why: &'static str) -> Finding {
        let UnknownOperation { operation, record, .. } = unknown;
        let route = &record.subject.route;
        self.observe(route, operation.record(), Observation::Found(FindResult::Uncontrolled));
        tracing::warn!(
            route,
            %operation,
            cause = why,
            next = "compare what is asked with what the service answers for an operation that is there: until one is found, no absence releases anything",
            "there is no trace of an operation, which proves nothing"
        );
        Finding::Inconclusive(format!("there is no trace of it, which proves nothing: {why}"))
    }

    /// Operations that were opened before and completed by the service's own answer: of the same scope first.
    async fn known_before(&self, unknown: &UnknownOperation) -> Result<Vec<CompletedOperation>, EngineError> {
        let record = &unknown.record;
        if let Some(known) = self.finders.controls.of(record) {
            return Ok(vec![known]);
        }
        let of_scope = self.completed_before(record, Some(record.subject.scope.clone())).await?;
        if of_scope.is_empty() { self.completed_before(record, None).await } else { Ok(of_scope) }
    }

    async fn completed_before(
        &self,
        unknown: &Record,
        scope: Option<String>,
    ) -> Result<Vec<CompletedOperation>, EngineError> {
        let filter = Filter {
            state: Some(StateKind::Completed),
            letter: None,
            route: Some(unknown.subject.route.clone()),
            scope,
            created_before: Some(Timestamp::from_micros(unknown.opened.as_number())),
        };
        let (mut known, mut after) = (Vec::new(), None);
        for _ in 0..PAGES_MAX {
            let scan = Scan { which: Which::Filter(filter.clone()), after, limit: self.sweeping.batch };
            let page = self.scan(scan).await?;
            let records = page.entries.into_iter().filter_map(|entry| Some((entry.id, entry.record.ok()?)));
            known.extend(records.filter_map(|found| self.known(found, unknown, page.now)));
            after = page.next;
            if after.is_none() || known.len() >= CONTROLS_MAX as usize {
                break;
            }
        }
        Ok(known)
    }

    /// A record as a control, where it can serve as one.
    fn known(
        &self,
        (id, record): (RecordId, Record),
        unknown: &Record,
        checked_at: Timestamp,
    ) -> Option<CompletedOperation> {
        let State::Completed { reply, .. } = &record.state else { return None };
        let by_service = record.verdict.as_ref().is_none_or(|verdict| verdict.by == BY);
        let is_known = (200..300).contains(&reply.status)
            && by_service
            && record.opened < unknown.opened
            && record.naming == Naming::Windowed
            && record.namespace() == Some(self.namespace);
        let (operation, fence) = (record.operation(id), record.fence);
        is_known.then(|| CompletedOperation {
            operation,
            fence,
            record: Arc::new(record.without_reply()),
            checked_at,
        })
    }
}

//! The scripts that run inside Redis. Each first compares the bucket's marker with the one that the caller knows: if the
//! bucket was emptied or rolled back, the script answers `lost`, and reads and writes nothing.
//!
//! The record is written last, so a script that ends with an error has not written it.

use std::sync::LazyLock;

/// A script and its hash, by which Redis knows it.
pub(crate) struct Script {
    pub body: &'static str,
    hash: LazyLock<String>,
}

impl Script {
    const fn new(body: &'static str, hash: fn() -> String) -> Self {
        Self { body, hash: LazyLock::new(hash) }
    }

    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }
}

fn hash(body: &str) -> String {
    redis::Script::new(body).get_hash().to_owned()
}

/// KEYS record, marker, leases, unknown, settled. ARGV generation, seen, expected version or nothing, list, score, id,
/// record. Answers `applied`, time, version; or `conflict`, time, last version, stored record.
pub(crate) static SWAP: Script = Script::new(SWAP_BODY, || hash(SWAP_BODY));
const SWAP_BODY: &str = r"
local marker = redis.call('HMGET', KEYS[2], 'generation', 'last')
if marker[1] ~= ARGV[1] or tonumber(marker[2] or 0) < tonumber(ARGV[2]) then
  return {'lost', marker[1] or '', marker[2] or ''}
end
local time = redis.call('TIME')
local head = redis.call('GETRANGE', KEYS[1], 0, 16)
if string.sub(head, 1, 16) ~= ARGV[3] then
  return {'conflict', time[1], time[2], marker[2], redis.call('GET', KEYS[1])}
end
local lists = {l = KEYS[3], u = KEYS[4], e = KEYS[5]}
local version = string.format('%016.0f', redis.call('HINCRBY', KEYS[2], 'last', 1))
local before = string.sub(head, 17, 17)
if lists[before] and before ~= ARGV[4] then
  redis.call('ZREM', lists[before], ARGV[6])
end
redis.call('ZADD', lists[ARGV[4]], ARGV[5], ARGV[6])
redis.call('SET', KEYS[1], version .. ARGV[4] .. ARGV[7])
return {'applied', time[1], time[2], version}
";

/// KEYS record, marker. ARGV generation, seen. Answers `found`, time, last version, stored record.
pub(crate) static LOAD: Script = Script::new(LOAD_BODY, || hash(LOAD_BODY));
const LOAD_BODY: &str = r"
local marker = redis.call('HMGET', KEYS[2], 'generation', 'last')
if marker[1] ~= ARGV[1] or tonumber(marker[2] or 0) < tonumber(ARGV[2]) then
  return {'lost', marker[1] or '', marker[2] or ''}
end
local time = redis.call('TIME')
return {'found', time[1], time[2], marker[2], redis.call('GET', KEYS[1])}
";

/// KEYS record, marker, leases, unknown, settled. ARGV generation, seen, version, id. Answers `forgotten`, time, last
/// version, 1 or 0.
pub(crate) static FORGET: Script = Script::new(FORGET_BODY, || hash(FORGET_BODY));
const FORGET_BODY: &str = r"
local marker = redis.call('HMGET', KEYS[2], 'generation', 'last')
if marker[1] ~= ARGV[1] or tonumber(marker[2] or 0) < tonumber(ARGV[2]) then
  return {'lost', marker[1] or '', marker[2] or ''}
end
local time = redis.call('TIME')
if redis.call('GETRANGE', KEYS[1], 0, 15) ~= ARGV[3] then
  return {'forgotten', time[1], time[2], marker[2], 0}
end
for list = 3, 5 do
  redis.call('ZREM', KEYS[list], ARGV[4])
end
redis.call('DEL', KEYS[1])
return {'forgotten', time[1], time[2], marker[2], 1}
";

/// KEYS list, marker. ARGV generation, seen, lowest score, highest score or nothing for now, offset, count. Answers
/// `listed`, time, last version, ids and scores.
pub(crate) static LIST: Script = Script::new(LIST_BODY, || hash(LIST_BODY));
const LIST_BODY: &str = r"
local marker = redis.call('HMGET', KEYS[2], 'generation', 'last')
if marker[1] ~= ARGV[1] or tonumber(marker[2] or 0) < tonumber(ARGV[2]) then
  return {'lost', marker[1] or '', marker[2] or ''}
end
local time = redis.call('TIME')
local most = ARGV[4]
if most == '' then
  most = string.format('%.0f', time[1] * 1000000 + time[2])
end
local found = redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[3], most, 'WITHSCORES', 'LIMIT', ARGV[5], ARGV[6])
return {'listed', time[1], time[2], marker[2], found}
";

/// KEYS marker. ARGV when, generation, the generation that must be there. Writes the marker and answers its generation.
/// Versions begin at the clock: a bucket would have to write a million records a second to overtake it. When a loss is
/// accepted, they continue an hour above the clock, whether the old count still exists or not: gateways take a count below
/// the one they saw for a rollback, and an earlier acceptance may have raised it above the clock. If the clock was set back,
/// the old count is raised by more than can have been rolled back.
pub(crate) static MARK: Script = Script::new(MARK_BODY, || hash(MARK_BODY));
const MARK_BODY: &str = r"
local marker = redis.call('HMGET', KEYS[1], 'generation', 'last')
if ARGV[1] == 'absent' and marker[1] then
  return marker[1]
end
if ARGV[1] == 'equal' then
  if marker[1] ~= ARGV[3] then
    return marker[1] or ''
  end
  redis.call('HSET', KEYS[1], 'generation', ARGV[2])
  return ARGV[2]
end
local time = redis.call('TIME')
local last = time[1] * 1000000 + time[2]
if ARGV[1] == 'always' then
  last = math.max(tonumber(marker[2] or 0) + 16777216, last + 4294967296)
end
redis.call('HSET', KEYS[1], 'generation', ARGV[2], 'last', string.format('%.0f', last))
return ARGV[2]
";

"""What kind `redis` runs inside the server, so that comparing owners, deleting and reading again is one atomic step.

Guarantees: a script touches only the keys it is given; nothing that a value says is evaluated (JSON is parsed by the
server's own parser). Each answers one letter an item, see `ANSWERS`. Redis runs a script whole or not at all.
"""

from __future__ import annotations

from connectors.base import Outcome

MOST_PARTS = 10_000
"""Parts of one key that are compared with the owner; Redis serves nobody else meanwhile."""
BUDGET = 50_000
"""Parts compared in one run of the script."""
MOST_ENTRIES = 200_000
"""Entries of a stream that is written anew in one step."""

AGAIN = "R"
ANSWERS = {
    "E": (Outcome.ERASED, "deleted and read again in one step"),
    "A": (Outcome.ALREADY_ABSENT, "read by key"),
    "M": (Outcome.OWNER_MISMATCH, "the value names another owner, or none"),
    "K": (Outcome.FAILED, "still there after the delete"),
    "T": (Outcome.FAILED, "the key is of a type whose parts have no names"),
    "U": (Outcome.FAILED, "the key is of a type whose owner cannot be read"),
    "B": (Outcome.FAILED, f"the key has more than {MOST_PARTS} parts to compare; erase them one by one"),
    "I": (Outcome.FAILED, "a stream entry is named by its whole id, milliseconds-number"),
}

ERASE = """
local owner, parts, budget, most = ARGV[1], 0, tonumber(ARGV[2]), tonumber(ARGV[3])
local forms, at = {}, 5
for n = 1, tonumber(ARGV[4]) do forms[ARGV[at]] = true; at = at + 1 end

local key_of_owner = '"' .. owner .. '"'
local find, byte, match, sub = string.find, string.byte, string.match, string.sub
-- A name with one of these can be spelled in several ways, so that only a decoded value tells.
local is_plain = not find(owner, '["\\\\/%c]')
local head, rest = false, 0
-- Only says yes: to an object without another bracket, in which the owner's name stands once, as a member. Decoding a
-- kilobyte to read one member takes longer than deleting it. An escaped letter may spell the name, so it is decoded.
-- Values of one application begin alike: what was seen of a head once is true of every value that begins so.
local function plainly_named(value)
  if byte(value, -1) ~= 125 then return false end
  if not head or find(value, head, 1, true) ~= 1 then
    local from, to = find(value, key_of_owner, 1, true)
    if not is_plain or not from or byte(value) ~= 123 or byte(value, from - 1) == 92 then return false end
    local name, after = match(value, '^%s*:%s*"([^"\\\\]*)"%s*[,}]()', to + 1)
    if not name or not forms[name] then return false end
    head, rest = sub(value, 1, after - 1), after
  end
  return not find(value, key_of_owner, rest, true) and not find(value, '{', 2, true)
    and not find(value, '[', 1, true) and not find(value, '\\\\u', 1, true)
end
-- A number is compared by its digits: as a number it is rounded from 2^53 on, to somebody else's.
local function digits_of(value, number)
  local from, to = find(value, key_of_owner, 1, true)
  if from and not find(value, owner, to + 1, true) and not find(value, '\\\\u', 1, true) then
    local digits = string.match(value, '^%s*:%s*(%-?%d+)%s*[,}]', to + 1)
    if digits then return digits end
  end
  if math.abs(number) < 1e15 and math.floor(number) == number then return string.format('%.0f', number) end
end
local function named(value)
  if not value then return false end
  if plainly_named(value) then return true end
  local ok, made = pcall(cjson.decode, value)
  if not ok or type(made) ~= 'table' then return false end
  local found = made[owner]
  if type(found) == 'number' then found = digits_of(value, found) end
  return type(found) == 'string' and forms[found] == true
end
local function all_named(values)
  parts = parts + #values
  for _, value in ipairs(values) do if not named(value) then return false end end
  return #values > 0
end
local function entry_named(fields)
  for n = 1, #fields, 2 do
    if fields[n] == owner then return forms[fields[n + 1]] == true end
  end
  return #fields == 2 and named(fields[2])
end
local count = {list = 'LLEN', set = 'SCARD', zset = 'ZCARD', hash = 'HLEN', stream = 'XLEN'}

local function may_go(key, kind)
  if kind == 'string' then return named(redis.call('GET', key)) and 'E' or 'M' end
  if not count[kind] then return 'U' end
  if kind == 'hash' then
    local own = redis.call('HGET', key, owner)
    if own then return forms[own] and 'E' or 'M' end
  end
  if redis.call(count[kind], key) > most then return 'B' end
  if kind == 'stream' then
    local entries = redis.call('XRANGE', key, '-', '+')
    parts = parts + #entries
    for _, entry in ipairs(entries) do if not entry_named(entry[2]) then return 'M' end end
    return #entries > 0 and 'E' or 'M'
  end
  local values
  if kind == 'list' then values = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'set' then values = redis.call('SMEMBERS', key)
  elseif kind == 'zset' then values = redis.call('ZRANGE', key, 0, -1)
  else values = redis.call('HVALS', key) end
  return all_named(values) and 'E' or 'M'
end

local function whole(key)
  if owner ~= '' then
    local kind = redis.call('TYPE', key).ok
    if kind == 'none' then return 'A' end
    local answer = may_go(key, kind)
    if answer ~= 'E' then return answer end
  end
  if redis.call('UNLINK', key) == 0 then return 'A' end
  return redis.call('EXISTS', key) == 0 and 'E' or 'K'
end

local function part(key, field)
  local kind = redis.call('TYPE', key).ok
  if kind == 'none' then return 'A' end
  if kind == 'hash' then
    local value = redis.call('HGET', key, field)
    if not value then return 'A' end
    local own = owner ~= '' and redis.call('HGET', key, owner)
    if owner ~= '' and not (own and forms[own]) and (own or not named(value)) then return 'M' end
    redis.call('HDEL', key, field)
    return redis.call('HEXISTS', key, field) == 0 and 'E' or 'K'
  elseif kind == 'zset' or kind == 'set' then
    local there = kind == 'zset' and redis.call('ZSCORE', key, field)
    if kind == 'set' then there = redis.call('SISMEMBER', key, field) == 1 end
    if not there then return 'A' end
    if owner ~= '' and not named(field) then return 'M' end
    redis.call(kind == 'zset' and 'ZREM' or 'SREM', key, field)
    return 'E'
  elseif kind == 'stream' then
    if not string.match(field, '^%d+%-%d+$') then return 'I' end
    local found = redis.call('XRANGE', key, field, field)
    if #found == 0 then return 'A' end
    if owner ~= '' and not entry_named(found[1][2]) then return 'M' end
    redis.call('XDEL', key, field)
    return #redis.call('XRANGE', key, field, field) == 0 and 'E' or 'K'
  end
  return 'T'
end

local named_parts = {}
for n = at, #ARGV, 2 do named_parts[tonumber(ARGV[n])] = ARGV[n + 1] end
local answers = {}

-- Nothing but whole keys: all that may go is deleted, and read again, by one command each.
local function together()
  if owner == '' and redis.call('EXISTS', unpack(KEYS)) < #KEYS then return false end
  for first = 1, owner == '' and 0 or #KEYS, 50 do
    local last = math.min(first + 49, #KEYS)
    -- Nothing is given for what is absent and for what is no string; which it is, is asked for then.
    local values = redis.call('MGET', unpack(KEYS, first, last))
    for n = first, last do
      local value = values[n - first + 1]
      if parts >= budget then answers[n] = 'R'
      elseif not value then
        local kind = redis.call('TYPE', KEYS[n]).ok
        local answer = kind == 'none' and 'A' or may_go(KEYS[n], kind)
        if answer ~= 'E' then answers[n] = answer end
      elseif not plainly_named(value) and not named(value) then answers[n] = 'M' end
    end
  end
  local going, places = KEYS, false
  if next(answers) then
    going, places = {}, {}
    for n, key in ipairs(KEYS) do
      if not answers[n] then
        going[#going + 1] = key
        places[#going] = n
      end
    end
  end
  if #going > 0 then
    if redis.call('UNLINK', unpack(going)) < #going then
      local seen = {}
      for n, key in ipairs(going) do
        if seen[key] then answers[places and places[n] or n] = 'A' end
        seen[key] = true
      end
    end
    if redis.call('EXISTS', unpack(going)) > 0 then
      for n, key in ipairs(going) do
        if redis.call('EXISTS', key) > 0 then answers[places and places[n] or n] = 'K' end
      end
    end
  end
  if not next(answers) then return string.rep('E', #KEYS) end
  for n = 1, #KEYS do answers[n] = answers[n] or 'E' end
  return table.concat(answers)
end

local said = at > #ARGV and together()
if said then return said end
for n, key in ipairs(KEYS) do
  if parts >= budget then answers[n] = 'R'
  elseif named_parts[n] then answers[n] = part(key, named_parts[n])
  else answers[n] = whole(key) end
end
return table.concat(answers)
"""
"""KEYS: one key an item. ARGV: owner field or '', budget, most parts, number of forms, forms; then, for each item that
is a part of its key, the item's number, from 1, and the part's name."""

REWRITE_STREAM = """
local key, most = KEYS[1], tonumber(ARGV[1])
if redis.call('TYPE', key).ok ~= 'stream' then return 'gone' end
local info = {}
local flat = redis.call('XINFO', 'STREAM', key)
for n = 1, #flat, 2 do info[flat[n]] = flat[n + 1] end
if info['length'] > most then return 'long' end
if info['max-deleted-entry-id'] == nil then return 'old' end
local expires = redis.call('PTTL', key)
local entries = redis.call('XRANGE', key, '-', '+')
local groups, pending = redis.call('XINFO', 'GROUPS', key), {}
local function named(flat)
  local made = {}
  for n = 1, #flat, 2 do made[flat[n]] = flat[n + 1] end
  return made
end
local seen = {}
for n, flat in ipairs(groups) do
  local group = named(flat)
  local consumers = {}
  for _, each in ipairs(redis.call('XINFO', 'CONSUMERS', key, group.name)) do
    consumers[#consumers + 1] = named(each).name
  end
  if group.pending > most then return 'long' end
  local waits = group.pending > 0 and redis.call('XPENDING', key, group.name, '-', '+', group.pending) or {}
  seen[n] = {group, consumers, waits}
end
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
local fresh = KEYS[2]
local function build()
  -- A group of our own makes an empty stream, which nothing else does.
  redis.call('XGROUP', 'CREATE', fresh, 'muniment', '0', 'MKSTREAM')
  redis.call('XGROUP', 'DESTROY', fresh, 'muniment')
  for _, entry in ipairs(entries) do redis.call('XADD', fresh, entry[1], unpack(entry[2])) end
  redis.call('XSETID', fresh, info['last-generated-id'], 'ENTRIESADDED', info['entries-added'], 'MAXDELETEDID', '0-0')
  for _, each in ipairs(seen) do
    local group, consumers, waits = each[1], each[2], each[3]
    local made = {'XGROUP', 'CREATE', fresh, group.name, group['last-delivered-id']}
    if group['entries-read'] then made[6] = 'ENTRIESREAD'; made[7] = group['entries-read'] end
    redis.call(unpack(made))
    for _, name in ipairs(consumers) do redis.call('XGROUP', 'CREATECONSUMER', fresh, group.name, name) end
    for _, wait in ipairs(waits) do
      redis.call('XCLAIM', fresh, group.name, wait[2], 0, wait[1], 'TIME', string.format('%.0f', now - wait[3]),
        'RETRYCOUNT', wait[4], 'FORCE', 'JUSTID')
    end
  end
  if expires > 0 then redis.call('PEXPIRE', fresh, expires) end
  redis.call('RENAME', fresh, key)
end
redis.call('UNLINK', fresh)
if not pcall(build) then
  redis.call('UNLINK', fresh)
  return 'failed'
end
return 'done'
"""
"""Write a stream anew: XDEL leaves an entry's bytes in their block, and dumps keep the block. Groups, consumers, what
they wait for and the expiry are kept; until the last command the old stream stands. KEYS: the stream and a scratch key;
ARGV: most entries."""

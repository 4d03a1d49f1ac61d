--- One chat turn: sends the message, or joins the turn of another client, collects the pieces of the answer, and knows
--- how the turn stands.
---
--- Pieces that arrive are shown in batches, so that a fast answer costs the editor little. Knows no buffers.

local rpc = require("ollm.rpc")

local M = {}

local uv = vim.uv

--- The time for which pieces are gathered before they are shown, in milliseconds: one frame of a screen or two.
local GATHER_MS = 30
--- Bytes that are shown at once, so that a batch never takes long.
local BATCH_BYTES = 48 * 1024

---@class ollm.Turn
---@field message string? the text of the user; nil for a retry
---@field key string the idempotency key
---@field state string `sending`, `running` or `ended`
---@field seq integer? the record of the message
---@field model string?
---@field phase table? what the turn does, as `winbar.phase` takes it
---@field thinking string[] the pieces so far
---@field answer string[]
---@field error table? why the turn ended
---@field subscription integer?
---@field session_id string? the session, for a turn that was joined
local Turn = {}
Turn.__index = Turn

--- Returns an idempotency key.
local function new_key()
  return (uv.random(16):gsub(".", function(byte)
    return ("%02x"):format(byte:byte())
  end))
end

--- Creates a turn. `hooks` are called as it goes on: `accepted()`, `changed()` for a new phase, `shown(kind, text)` for
--- text to show, `remark(line)`, `usage(usage)` and `ended(err?)`, which is the last.
---@param message string?
---@param hooks table<string, function>
---@return ollm.Turn
function M.new(message, hooks)
  return setmetatable({
    message = message, hooks = hooks, key = new_key(), state = "sending", phase = { name = "sending" },
    repeated = {}, thinking = {}, answer = {}, waiting = {}, n_waiting = 0, first = 1,
  }, Turn)
end

--- Sends the message. The callback gets an error if the turn did not begin.
---@param session_id string
---@param callback fun(err: table?)
function Turn:start(session_id, callback)
  local params = { sessionId = session_id, key = self.key }
  if self.message then
    params.message = { role = "user", content = self.message }
  end
  rpc.stream("chat.send", params, function(event, err)
    self:on_event(event or { kind = "error", message = err.message, data = err.data, lost = err })
  end, function(err, subscription)
    if not err then
      self.subscription = subscription
      self.state = "running"
      if self.is_stopped then
        self:stop(session_id)
      end
    end
    callback(err)
  end)
end

--- Joins the turn that runs in a session. Nothing happens if none does.
---@param session_id string
function Turn:join(session_id)
  self.session_id = session_id
  rpc.stream("chat.follow", { sessionId = session_id }, function(event, err)
    self:on_event(event or { kind = "error", message = err.message, data = err.data, lost = err })
  end, function(_, subscription)
    self.subscription = subscription
    if self.state == "ended" then
      self:leave()
    end
  end, false)
end

--- Stops showing a turn that was joined, which goes on.
function Turn:leave()
  local is_open = not self.is_finished and self.subscription
  self.state = "ended"
  self:stop_timer()
  if is_open then
    rpc.finish("chat.follow", self.subscription)
    rpc.call("chat.unfollow", { self.subscription }, nil, function() end)
    self.subscription = nil
  end
end

--- Forgets the pieces, which the records have or which are sent again.
function Turn:reset()
  self.thinking, self.answer, self.waiting, self.n_waiting, self.first = {}, {}, {}, 0, 1
  self.shown_kind = nil
end

--- Asks the daemon to end the turn; the answer so far is kept. A turn that did not begin yet ends when it does.
---@param session_id string?
function Turn:stop(session_id)
  self.is_stopped = true
  if self.state ~= "running" then
    return
  end
  rpc.call("chat.cancel", { sessionId = session_id }, nil, function(err)
    if err then
      self.hooks.remark("error: " .. err.message)
    end
  end)
end

local HANDLERS
HANDLERS = {
  accepted = function(self, event)
    self.seq, self.model = event.seq, event.model
    self.hooks.accepted()
  end,
  running = function(self, event)
    self.state, self.seq, self.model = "running", event.seq, event.model
    self:reset()
    self.hooks.accepted()
    if self.state == "running" and not event.answerSeq then
      HANDLERS.delta(self, event)
    end
  end,
  toolCalls = function(self)
    if self.session_id then
      self:reset()
      self.hooks.recorded()
    end
  end,
  phase = function(self, event)
    self.phase = vim.tbl_extend("force", event, { startedMs = uv.hrtime() / 1e6 })
    self.hooks.changed()
  end,
  delta = function(self, event)
    if event.thinking and event.thinking ~= "" then
      self:gather("thinking", event.thinking)
    end
    if event.text and event.text ~= "" then
      self:gather("answer", event.text)
    end
  end,
  failover = function(self, event)
    self.hooks.remark(event.message or ("the server %s failed, %s is asked"):format(event.from, event.to))
  end,
  cut = function(self, event)
    local words = "the model reads %d of the %d tokens of #%d, because the record does not fit"
    self.hooks.remark(words:format(event.shownTokens or 0, event.totalTokens or 0, event.seq or 0))
  end,
  usage = function(self, event)
    self.hooks.usage(event.usage or {})
  end,
  done = function(self)
    self:finish(nil)
  end,
  error = function(self, event)
    local data = event.data or {}
    self:finish(event.lost or { kind = data.kind, message = event.message, hint = data.hint, data = data })
  end,
}

--- Handles an event of the turn; ignores kinds that it does not know.
function Turn:on_event(event)
  local handler = HANDLERS[event.kind]
  if handler and self.state ~= "ended" and not self.is_finished then
    handler(self, event)
  end
end

--- Keeps a piece to be shown with others.
function Turn:gather(kind, piece)
  self.n_waiting = self.n_waiting + 1
  self.waiting[self.n_waiting] = { kind = kind, piece = piece }
  if not self.timer then
    self.timer = uv.new_timer()
    self.timer:start(GATHER_MS, 0, vim.schedule_wrap(function()
      self:show_batch()
    end))
  end
end

--- Shows one batch of the pieces that wait, and plans the next one.
function Turn:show_batch()
  if not self.timer then
    return
  end
  local kind, pieces, size = nil, {}, 0
  while self.first <= self.n_waiting and size < BATCH_BYTES do
    local item = self.waiting[self.first]
    if kind and item.kind ~= kind then
      break
    end
    kind = item.kind
    pieces[#pieces + 1] = item.piece
    size = size + #item.piece
    self.waiting[self.first] = nil
    self.first = self.first + 1
  end
  if kind then
    local piece = table.concat(pieces)
    self[kind][#self[kind] + 1] = piece
    self.hooks.shown(kind, piece)
  end
  if self.first <= self.n_waiting then
    self.timer:start(1, 0, vim.schedule_wrap(function()
      self:show_batch()
    end))
  else
    self:stop_timer()
    if self.is_finished then
      self:end_now()
    end
  end
end

function Turn:stop_timer()
  if self.timer then
    self.timer:stop()
    self.timer:close()
    self.timer = nil
  end
end

--- Ends the turn once all of its pieces are shown.
function Turn:finish(err)
  if self.is_finished then
    return
  end
  self.is_finished, self.error = true, err
  if self.subscription then
    rpc.finish("chat.send", self.subscription)
  end
  if not self.timer then
    self:end_now()
  end
end

function Turn:end_now()
  self.state = "ended"
  self.hooks.ended(self.error)
end

return M

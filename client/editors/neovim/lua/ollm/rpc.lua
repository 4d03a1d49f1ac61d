--- The connection to the daemon: JSON-RPC lines over its socket, for any number of calls, chat turns and listeners.
---
--- One connection serves the whole editor. The next call opens it if it is closed, and starts the daemon then. While
--- somebody listens to events, a lost connection is opened again and the events go on; a listener gets `resync` when it
--- must read its state again.
---
--- **Invariants**: each callback of a call is called once; callbacks run on the main loop, in the order of the frames;
--- no slice of them runs longer than the editor can bear. Errors are tables `{kind, message, hint?, data?}`.

local address = require("ollm.address")

local M = {}

local uv = vim.uv

M.PROTOCOL = 1
M.VERSION = "0.1.0"

--- The longest frame of the protocol, in bytes.
M.MAX_FRAME_BYTES = 16 * 1024 * 1024
--- The longest wait for a reply, in milliseconds, unless a call says otherwise.
local CALL_MS = 30000
--- The longest wait for one socket to answer `daemon.hello`, in milliseconds.
local HELLO_MS = 3000
--- Nanoseconds for which frames are handled before the editor handles keys again.
local SLICE_NS = 8e6
--- Pauses between attempts to connect again, in milliseconds; the last one repeats.
local RETRY_MS = { 50, 100, 200, 400, 800, 1500, 3000 }

--------------------------------------------------------------------------------------------------------------------
-- Frames

--- Cuts a stream of bytes into lines. A line is whole before anybody reads it, so characters are never split.
---@class ollm.Reader
---@field parts string[] the pieces of the line that has no end yet
---@field size integer their bytes
local Reader = {}
Reader.__index = Reader
M.Reader = Reader

---@return ollm.Reader
function Reader.new()
  return setmetatable({ parts = {}, size = 0 }, Reader)
end

--- Adds a piece and passes each line that it completes to `on_line`. Returns false if a line is too long.
---@param chunk string
---@param on_line fun(line: string)
---@return boolean
function Reader:push(chunk, on_line)
  local from = 1
  while true do
    local to = chunk:find("\n", from, true)
    local piece = chunk:sub(from, to and to - 1 or nil)
    if piece ~= "" then
      self.parts[#self.parts + 1] = piece
      self.size = self.size + #piece
    end
    -- A response may be as long as a frame, with some room for its line end.
    if self.size > M.MAX_FRAME_BYTES + 2 then
      return false
    end
    if not to then
      return true
    end
    local line = table.concat(self.parts)
    self.parts, self.size, from = {}, 0, to + 1
    if line:find("%S") then
      on_line(line)
    end
  end
end

--------------------------------------------------------------------------------------------------------------------
-- The state of the connection

--- `closed`, `connecting` or `open`.
local state = "closed"
--- The pipe in use, and the reply of `daemon.hello`.
local pipe, hello
--- Calls without a reply, by id: `{method, callback, on_event?, timer}`.
local pending = {}
local next_id = 1
--- Handlers of notifications, by method and number.
local subscriptions = {}
--- Callbacks that wait until the connection is open.
local waiting = {}
--- True if one of them may start the daemon.
local may_start = false
--- Functions that receive events.
local listeners = {}
--- True if the connection has a subscription to events.
local is_subscribed = false
--- The last event that was seen: `{epoch, eventSeq}`.
local last_event
--- The number of failed attempts to connect again, and the timer of the next one.
local n_retries, retry_timer = 0, nil

local connect, handle_close

local function failure(kind, message, hint)
  return { kind = kind, message = message, hint = hint }
end

--- Calls a function that belongs to somebody else; its error is reported and nothing else fails.
local function guarded(callback, ...)
  local is_done, problem = xpcall(callback, debug.traceback, ...)
  if not is_done then
    vim.notify("ollm: " .. tostring(problem), vim.log.levels.ERROR)
  end
end

local function announce(event)
  for _, listener in ipairs(vim.list_slice(listeners)) do
    guarded(listener, event)
  end
end

--- Converts the error of a response.
local function convert(err)
  local data = type(err.data) == "table" and err.data or {}
  return { kind = data.kind or "unknown", code = err.code, message = err.message, hint = data.hint, data = data }
end

local function stop_timer(timer)
  if timer and not timer:is_closing() then
    timer:stop()
    timer:close()
  end
end

--------------------------------------------------------------------------------------------------------------------
-- Frames that arrive

--- Frames and the ends of connections that wait to be handled, from `first` to `last`.
local queue, first, last = {}, 1, 0
local is_draining = false

local function handle_response(frame)
  local call = pending[frame.id]
  if not call then
    return
  end
  pending[frame.id] = nil
  stop_timer(call.timer)
  if frame.error then
    return guarded(call.callback, convert(frame.error))
  end
  if call.on_event then
    if call.is_late then
      -- Nobody waits for this subscription any more.
      return M.call(call.unsubscribe, { frame.result }, nil, function() end)
    end
    subscriptions[call.notification .. frame.result] = call.on_event
  end
  guarded(call.callback, nil, frame.result)
end

local function handle_frame(line)
  local is_json, frame = pcall(vim.json.decode, line, { luanil = { object = true, array = true } })
  if not is_json or type(frame) ~= "table" then
    return handle_close(pipe, failure("garbage", "the daemon sent a line that is not JSON", "ollmctl daemon status"))
  end
  if frame.method then
    local params = frame.params or {}
    local handler = subscriptions[frame.method .. tostring(params.subscription)]
    if handler then
      guarded(handler, params.result, params.error and convert(params.error))
    end
  elseif frame.id ~= nil then
    handle_response(frame)
  elseif frame.error then
    -- Without an id, the error may belong to any call.
    local err = convert(frame.error)
    for id, call in pairs(pending) do
      pending[id] = nil
      stop_timer(call.timer)
      guarded(call.callback, err)
    end
  end
end

--- Handles queued frames for one slice of time, then lets the editor handle keys.
local function drain()
  local started = uv.hrtime()
  while first <= last do
    local item = queue[first]
    queue[first] = nil
    first = first + 1
    if item.closed then
      handle_close(item.pipe, item.closed)
    elseif item.pipe == pipe then
      -- A frame that is not as expected must not end the handling of those behind it.
      guarded(handle_frame, item.line)
    end
    if uv.hrtime() - started > SLICE_NS and first <= last then
      -- A timer and not `vim.schedule`, which would run before the next key is read.
      return vim.defer_fn(drain, 1)
    end
  end
  is_draining = false
end

local function enqueue(item)
  last = last + 1
  queue[last] = item
  if not is_draining then
    is_draining = true
    vim.schedule(drain)
  end
end

--------------------------------------------------------------------------------------------------------------------
-- Requests

--- Writes a request. Returns an error if it cannot be sent.
local function write(request)
  local is_json, line = pcall(vim.json.encode, request)
  if not is_json then
    return failure("unsendable", "the params cannot be written as JSON: " .. tostring(line))
  end
  if #line > M.MAX_FRAME_BYTES then
    return failure("tooLarge", "the text is larger than 16 MiB, the most that the daemon accepts at once")
  end
  pipe:write(line .. "\n")
end

--- Sends a request over the pipe in use, with a deadline for its reply.
local function request(method, params, options, callback)
  local id = next_id
  next_id = id + 1
  local call = vim.tbl_extend("force", { method = method, callback = callback }, options)
  call.timeout = nil
  if not params or vim.tbl_isempty(params) then
    params = vim.empty_dict()
  end
  local err = write({ jsonrpc = "2.0", id = id, method = method, params = params })
  if err then
    return guarded(callback, err)
  end
  pending[id] = call
  local timeout = options.timeout or CALL_MS
  call.timer = uv.new_timer()
  call.timer:start(timeout, 0, vim.schedule_wrap(function()
    stop_timer(call.timer)
    if pending[id] ~= call or call.is_late then
      return
    end
    -- A subscription that begins too late must be ended, all other replies can be dropped.
    pending[id], call.is_late = call.on_event and call or nil, true
    local seconds = ("%g"):format(timeout / 1000)
    guarded(callback, failure("timeout", ("no reply to %s within %s s"):format(method, seconds), "ollmctl doctor"))
  end))
end

--- Runs a function when the connection is open, or passes the error on.
local function when_open(callback, starts)
  if state == "open" then
    return callback(nil)
  end
  waiting[#waiting + 1] = callback
  may_start = may_start or starts
  if state == "closed" then
    connect()
  end
end

--- Calls a method. The callback gets an error or the result, once.
---@param method string
---@param params table?
---@param options? {timeout?: integer} the longest wait for the reply, in milliseconds
---@param callback fun(err: table?, result: any)
function M.call(method, params, options, callback)
  when_open(function(err)
    if err then
      return guarded(callback, err)
    end
    request(method, params, options or {}, callback)
  end, true)
end

--- Calls a method that begins a subscription. The callback gets its number; `on_event` gets each notification, or an
--- error when the daemon or a lost connection ends the subscription.
---@param method string `chat.send`, `chat.follow` or `event.subscribe`
---@param params table?
---@param on_event fun(event: table?, err: table?)
---@param callback fun(err: table?, subscription: integer?)
---@param starts? boolean whether the daemon may be started, by default true
function M.stream(method, params, on_event, callback, starts)
  local noun = method:match("^%a+")
  local unsubscribe = method == "chat.follow" and "chat.unfollow" or noun .. ".unsubscribe"
  local options = { on_event = on_event, notification = noun .. ".event", unsubscribe = unsubscribe }
  when_open(function(err)
    if err then
      return guarded(callback, err)
    end
    request(method, params, options, callback)
  end, starts ~= false)
end

--- Forgets the handler of a subscription that has ended.
---@param method string
---@param subscription integer
function M.finish(method, subscription)
  subscriptions[method:match("^%a+") .. ".event" .. subscription] = nil
end

--- Calls a method and waits for the result; for completion and health checks only.
---@param method string
---@param params table?
---@param timeout integer milliseconds
---@return table? err
---@return any result
function M.call_sync(method, params, timeout)
  local is_done, err, result = false, nil, nil
  M.call(method, params, { timeout = timeout }, function(...)
    is_done, err, result = true, ...
  end)
  vim.wait(timeout + 100, function()
    return is_done
  end, 5)
  if not is_done then
    return failure("timeout", ("no reply to %s within %g s"):format(method, timeout / 1000), "ollmctl doctor")
  end
  return err, result
end

--------------------------------------------------------------------------------------------------------------------
-- Connecting

local function finish_connecting(err)
  state = err and "closed" or "open"
  local callbacks = waiting
  waiting, may_start = {}, false
  for _, callback in ipairs(callbacks) do
    guarded(callback, err)
  end
end

local function close_pipe()
  local closing = pipe
  pipe, hello = nil, nil
  if closing and not closing:is_closing() then
    closing:read_stop()
    closing:close()
  end
end

--- Reads from a new pipe until it ends.
local function read(new_pipe)
  local reader = Reader.new()
  new_pipe:read_start(function(err, chunk)
    if not chunk then
      local message = err and ("the connection to the daemon broke: " .. err) or "the daemon closed the connection"
      return enqueue({ closed = failure("closed", message, "ollmctl daemon status"), pipe = new_pipe })
    end
    local is_fine = reader:push(chunk, function(line)
      enqueue({ line = line, pipe = new_pipe })
    end)
    if not is_fine then
      new_pipe:read_stop()
      enqueue({ closed = failure("garbage", "the daemon sent a line of more than 16 MiB"), pipe = new_pipe })
    end
  end)
end

--- Says hello over a connected pipe and checks which home the daemon serves.
local function greet(home_id, callback)
  local params = { client = "ollm.nvim", version = M.VERSION, protocolMin = M.PROTOCOL, protocolMax = M.PROTOCOL }
  request("daemon.hello", params, { timeout = HELLO_MS }, function(err, result)
    if not err and home_id ~= nil and result.homeId and result.homeId ~= home_id then
      err = failure("otherHome", "the daemon at this socket serves another home")
    end
    if not err then
      hello = result
    end
    callback(err)
  end)
end

--- Tries one socket.
local function try_socket(path, home_id, callback)
  local new_pipe = uv.new_pipe(false)
  new_pipe:connect(path, vim.schedule_wrap(function(problem)
    if problem then
      new_pipe:close()
      return callback(failure("unreachable", ("no daemon listens at %s"):format(path)))
    end
    pipe = new_pipe
    read(new_pipe)
    greet(home_id, function(err)
      if err then
        close_pipe()
      end
      callback(err)
    end)
  end))
end

--- Tries every socket of the home in order. The callback gets the error of the last one, or the one that decides.
local function try_sockets(callback)
  local sockets, home_id = address.sockets()
  local function try(index, err)
    local path = sockets[index]
    if not path then
      return callback(err or failure("unreachable", "the daemon does not run", "ollmctl daemon start"))
    end
    try_socket(path, home_id, function(problem)
      if not problem then
        return callback(nil)
      end
      if problem.kind == "unsupportedVersion" then
        problem.hint = problem.hint or "ollmctl daemon restart"
        return callback(problem)
      end
      try(index + 1, problem)
    end)
  end
  try(1)
end

--- Subscribes to events, after the last one that was seen.
local function subscribe()
  if is_subscribed then
    return
  end
  is_subscribed = true
  local since = last_event
  last_event = last_event or { epoch = hello.epoch, eventSeq = 0 }
  M.stream("event.subscribe", { since = since }, function(event, err)
    if err then
      return
    end
    last_event = { epoch = event.epoch, eventSeq = event.eventSeq }
    announce(event)
  end, function(err)
    if err then
      announce({ kind = "subscription-failed", error = err })
    end
  end, false)
end

local function schedule_retry()
  if #listeners == 0 or retry_timer then
    return
  end
  n_retries = n_retries + 1
  retry_timer = uv.new_timer()
  retry_timer:start(RETRY_MS[math.min(n_retries, #RETRY_MS)], 0, vim.schedule_wrap(function()
    stop_timer(retry_timer)
    retry_timer = nil
    if state == "closed" and #listeners > 0 then
      -- Never starts the daemon: perhaps somebody stopped it. The next call does.
      connect()
    end
  end))
end

connect = function()
  state = "connecting"
  local is_started = false
  local function finish(err)
    if err and may_start and not is_started and address.may_start() and err.kind ~= "unsupportedVersion" then
      is_started = true
      return address.start(function(problem)
        if problem then
          return finish(problem)
        end
        try_sockets(finish)
      end)
    end
    if err then
      finish_connecting(err)
      return schedule_retry()
    end
    n_retries = 0
    -- The callers that wait may begin to listen; they need not hear that the connection is open.
    local known = vim.list_slice(listeners)
    finish_connecting(nil)
    for _, listener in ipairs(known) do
      guarded(listener, { kind = "connected" })
    end
    if #listeners > 0 then
      subscribe()
    end
  end
  try_sockets(finish)
end

--- Ends everything that ran over a pipe.
handle_close = function(closed_pipe, err)
  if closed_pipe ~= pipe or not pipe then
    return
  end
  local was_open = state == "open"
  close_pipe()
  local calls, streams = pending, subscriptions
  pending, subscriptions, is_subscribed = {}, {}, false
  if was_open then
    state = "closed"
  end
  for _, call in pairs(calls) do
    stop_timer(call.timer)
    if not call.is_late then
      guarded(call.callback, err)
    end
  end
  for key, on_event in pairs(streams) do
    if not key:find("^event") then
      guarded(on_event, nil, err)
    end
  end
  if was_open then
    announce({ kind = "disconnected", error = err })
    schedule_retry()
  end
end

--------------------------------------------------------------------------------------------------------------------
-- Listeners and state

--- Passes all events of the daemon to a function, and besides `connected`, `disconnected` and `subscription-failed`.
--- Returns a function that ends this.
---@param listener fun(event: table)
---@return fun()
function M.listen(listener)
  listeners[#listeners + 1] = listener
  if state == "open" then
    subscribe()
  end
  return function()
    for index, known in ipairs(listeners) do
      if known == listener then
        table.remove(listeners, index)
        break
      end
    end
  end
end

--- Returns the reply of `daemon.hello`, or nil if the connection is not open.
---@return table?
function M.hello()
  return state == "open" and hello or nil
end

--- Closes the connection without opening it again.
function M.close()
  listeners = {}
  stop_timer(retry_timer)
  retry_timer, last_event, n_retries = nil, nil, 0
  if pipe then
    handle_close(pipe, failure("closed", "the connection was closed"))
  end
end

return M

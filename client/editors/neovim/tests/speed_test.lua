-- The time from the call that sends to the acceptance of the daemon, beside that of the same call on a bare socket.

local t = require("harness")

local uv = vim.uv
local N = 100
--- The most that the plugin may add, in milliseconds.
local MAX_ADDED_MS = 5

local function median(times)
  table.sort(times)
  return times[math.ceil(#times / 2)]
end

--- Opens a bare socket; returns a function that sends a message over it and returns the milliseconds until the reply.
local function open_wire(socket, session_id)
  local pipe, rest, is_connected = uv.new_pipe(false), "", false
  pipe:connect(socket, function(err)
    is_connected = not err
  end)
  t.wait("the connection", function()
    return is_connected
  end)
  local started, took, is_ended
  pipe:read_start(function(_, chunk)
    rest = rest .. (chunk or "")
    if not took and rest:find('"id":', 1, true) then
      took = (uv.hrtime() - started) / 1e6
    end
    is_ended = is_ended or rest:find('"kind":"done"', 1, true) ~= nil
  end)
  return function(number)
    local params = { sessionId = session_id, message = { role = "user", content = "wire " .. number .. " [pieces 1]" } }
    rest, took, is_ended = "", nil, false
    started = uv.hrtime()
    pipe:write(vim.json.encode({ jsonrpc = "2.0", id = number, method = "chat.send", params = params }) .. "\n")
    t.wait("the end of the turn", function()
      return is_ended
    end)
    assert(rest:find('"result":%d'), rest)
    return took
  end
end

--- Sends a message as the key does; returns the milliseconds until the reply.
local function send(chat, number)
  local took, problem
  vim.api.nvim_buf_set_lines(chat.view.prompt, 0, -1, false, { "plugin " .. number .. " [pieces 1]" })
  local own = chat.view.actions.send
  local started = uv.hrtime()
  chat.view.actions.send = function(message)
    return chat:send(message, function(err)
      took, problem = (uv.hrtime() - started) / 1e6, err
    end)
  end
  chat.view:submit()
  chat.view.actions.send = own
  t.wait("the end of the turn", function()
    return took and chat.turn == nil
  end)
  assert(not problem, vim.inspect(problem))
  return took
end

return {
  { "sending adds little to the time of the wire", function()
    t.new_home()
    local chat = t.new_chat()
    t.turn(chat, "warm up")
    local session = t.call("session.create", { projectPath = t.project }).session
    local on_wire = open_wire(t.call("daemon.status", {}).socket, session.sessionId)
    on_wire(0)
    local plugin, wire = {}, {}
    -- In turn, so that the load of the machine is the same for both.
    for number = 1, N do
      plugin[number] = send(chat, number)
      -- The chat asks for the state of its window behind a turn; the wire asks nothing.
      t.call("daemon.hello", { client = "test", version = "1", protocolMin = 1, protocolMax = 1 })
      wire[number] = on_wire(number)
    end
    local added = median(plugin) - median(wire)
    print(("  median of %d: %.2f ms by the plugin, %.2f ms on the wire\n"):format(N, median(plugin), median(wire)))
    assert(added <= MAX_ADDED_MS, ("%.2f ms more than the wire"):format(added))
  end },
}

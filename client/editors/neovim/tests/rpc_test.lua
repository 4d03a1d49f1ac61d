-- The connection: finding and starting the daemon, deadlines, frames in pieces, and lost connections.

local t = require("harness")

local uv = vim.uv

--- Serves a socket by a function that gets each request and the connection; returns the path.
local function serve(on_request)
  local path = vim.env.OLLM_SCRATCH .. "/fake" .. uv.hrtime() % 1000000 .. ".sock"
  local server = uv.new_pipe(false)
  server:bind(path)
  server:listen(8, function()
    local client = uv.new_pipe(false)
    server:accept(client)
    local rest = ""
    client:read_start(function(_, chunk)
      if not chunk then
        return client:close()
      end
      rest = rest .. chunk
      while true do
        local line, after = rest:match("^([^\n]*)\n(.*)$")
        if not line then
          return
        end
        rest = after
        on_request(vim.json.decode(line), client)
      end
    end)
  end)
  t.reload()
  require("ollm").setup({ socket = path })
  vim.env.OLLM_HOME = nil
  return path
end

local function reply(request, result)
  return vim.json.encode({ jsonrpc = "2.0", id = request.id, result = result }) .. "\n"
end

local HELLO = { protocol = 1, schemaRevision = 1, version = "9.9.9", pid = 1, epoch = "e", limits = {} }

--- Writes bytes one piece after another, a pass of the loop each.
local function dribble(client, bytes, size)
  local at = 1
  local function next_piece()
    if at <= #bytes and not client:is_closing() then
      client:write(bytes:sub(at, at + size - 1), next_piece)
      at = at + size
    end
  end
  next_piece()
end

return {
  { "daemon is started, found and greeted", function()
    t.new_home()
    local rpc = require("ollm.rpc")
    t.equal(nil, rpc.hello())
    local status = t.call("daemon.status", {})
    t.equal(t.home, status.home)
    t.equal(1, rpc.hello().protocol)
    t.equal(require("ollm.address").home_id(t.home), rpc.hello().homeId)
    -- A second editor finds the daemon that runs.
    local pid = status.pid
    t.reload()
    t.equal(pid, t.call("daemon.status", {}).pid)
  end },
  { "daemon is found without daemon.json, and by the socket that is given", function()
    t.new_home()
    local socket = t.call("daemon.status", {}).socket
    local pid = t.daemon_pid()
    vim.fn.delete(t.home .. "/daemon.json")
    vim.env.OLLM_NO_SPAWN = "1"
    t.reload()
    t.equal(pid, t.call("daemon.status", {}).pid)
    -- A socket without a home decides alone.
    vim.env.OLLM_HOME, vim.env.OLLM_SOCKET = nil, socket
    t.reload()
    t.equal(pid, t.call("daemon.status", {}).pid)
    -- With another home, it is that of another daemon.
    vim.env.OLLM_HOME = t.project
    t.reload()
    local err = require("ollm.rpc").call_sync("daemon.status", {}, 5000)
    vim.env.OLLM_NO_SPAWN, vim.env.OLLM_SOCKET = nil, nil
    t.equal("otherHome", err.kind)
  end },
  { "home behind a link is the same home", function()
    t.new_home()
    local pid = t.call("daemon.status", {}).pid
    vim.uv.fs_symlink(t.home, t.home .. "-link")
    vim.env.OLLM_HOME, vim.env.OLLM_NO_SPAWN = t.home .. "-link/", "1"
    t.reload()
    local found = t.call("daemon.status", {}).pid
    vim.env.OLLM_NO_SPAWN = nil
    t.equal(pid, found)
  end },
  { "daemon is not started against the user's will", function()
    t.new_home()
    vim.env.OLLM_NO_SPAWN = "1"
    local err = require("ollm.rpc").call_sync("daemon.status", {}, 5000)
    vim.env.OLLM_NO_SPAWN = nil
    t.equal("unreachable", err.kind)
    t.equal("ollmctl daemon start", err.hint)
  end },
  { "missing ollmctl is one clear error", function()
    t.new_home()
    require("ollm").setup({ ollmctl = "/nowhere/ollmctl" })
    local err = require("ollm.rpc").call_sync("daemon.status", {}, 5000)
    t.equal("notInstalled", err.kind)
    t.contains(err.message, "/nowhere/ollmctl was not found")
    t.contains(err.hint, "cargo install")
  end },
  { "daemon that cannot start is an error with a hint", function()
    t.new_home()
    vim.fn.writefile({ "models: [" }, t.home .. "/config.yaml")
    local err = require("ollm.rpc").call_sync("daemon.status", {}, 20000)
    t.equal("notStarted", err.kind)
    assert(err.hint and err.hint ~= "", "no hint")
  end },
  { "daemon of another home is not used", function()
    t.call("daemon.status", {})
    local other = vim.json.decode(io.open(t.home .. "/daemon.json"):read("*a"))
    t.new_home()
    other.homeId = nil
    vim.fn.writefile({ vim.json.encode(other) }, t.home .. "/daemon.json")
    vim.env.OLLM_NO_SPAWN = "1"
    local err = require("ollm.rpc").call_sync("daemon.status", {}, 5000)
    vim.env.OLLM_NO_SPAWN = nil
    t.equal("otherHome", err.kind)
    -- With a start allowed, the home gets its own daemon.
    t.equal(t.home, t.call("daemon.status", {}).home)
  end },
  { "frames in any pieces are read", function()
    local text = "ünï🙂 " .. ("x"):rep(500)
    serve(function(request, client)
      local result = request.method == "daemon.hello" and HELLO or { text = text, n = request.params.n }
      dribble(client, reply(request, result), 1)
    end)
    for n = 1, 3 do
      t.equal({ text = text, n = n }, t.call("any.method", { n = n }))
    end
  end },
  { "frame of several megabytes is read while the editor goes on", function()
    local text = ("ü🙂 line\\n"):rep(700000)
    serve(function(request, client)
      if request.method == "daemon.hello" then
        return client:write(reply(request, HELLO))
      end
      dribble(client, ('{"jsonrpc":"2.0","id":%d,"result":{"text":"%s"}}\n'):format(request.id, text), 65536)
    end)
    t.call("first", {})
    local watch = require("stalls").start()
    local result
    require("ollm.rpc").call("second", {}, nil, function(_, got)
      result = got
    end)
    t.wait("the result", function()
      return result
    end)
    t.equal(#text - 700000, #result.text)
    local longest = watch.stop()
    assert(longest < 400, ("the editor stood still for %d ms"):format(longest))
  end },
  { "call without a reply ends at its deadline, and a later reply is dropped", function()
    local held
    serve(function(request, client)
      if request.method == "daemon.hello" then
        return client:write(reply(request, HELLO))
      elseif request.method == "slow" then
        held = request
        return
      elseif request.method == "late" then
        client:write(reply(held, "too late"))
      end
      client:write(reply(request, "fine"))
    end)
    local rpc, n_calls = require("ollm.rpc"), 0
    local problem
    rpc.call("slow", {}, { timeout = 50 }, function(err)
      n_calls, problem = n_calls + 1, err
    end)
    t.wait("the deadline", function()
      return problem
    end)
    t.equal("timeout", problem.kind)
    t.contains(problem.message, "no reply to slow within 0.05 s")
    t.equal("fine", t.call("late", {}))
    t.equal(1, n_calls)
  end },
  { "daemon of another protocol is refused with the command that helps", function()
    serve(function(request, client)
      local data = { kind = "unsupportedVersion", found = 1, supported = 2, hint = "ollmctl daemon restart" }
      local err = { code = 1008, message = "protocol 2 is spoken", data = data }
      client:write(vim.json.encode({ jsonrpc = "2.0", id = request.id, error = err }) .. "\n")
    end)
    local err = require("ollm.rpc").call_sync("any", {}, 5000)
    t.equal("unsupportedVersion", err.kind)
    t.equal("ollmctl daemon restart", err.hint)
  end },
  { "line that is no JSON ends the connection and its calls", function()
    serve(function(request, client)
      client:write(request.method == "daemon.hello" and reply(request, HELLO) or "garbage\n")
    end)
    local err = require("ollm.rpc").call_sync("any", {}, 5000)
    t.equal("garbage", err.kind)
  end },
  { "text beyond the largest frame is refused before it is sent", function()
    local err = require("ollm.rpc").call_sync("session.list", { title = ("x"):rep(17 * 1024 * 1024) }, 5000)
    t.equal("tooLarge", err.kind)
    t.call("session.list", { limit = 1 })
  end },
  { "listener hears of a restart, gets a resync, and events go on", function()
    t.new_home()
    local rpc, kinds = require("ollm.rpc"), {}
    rpc.listen(function(event)
      kinds[#kinds + 1] = event.kind
    end)
    t.call("daemon.status", {})
    local function count(kind)
      return #vim.tbl_filter(function(heard)
        return heard == kind
      end, kinds)
    end
    local function create()
      local session = t.call("session.create", { projectPath = t.project }).session
      t.call("session.record", { sessionId = session.sessionId, message = { role = "user", content = "hi" } })
    end
    create()
    t.wait("the first event", function()
      return count("session-created") == 1
    end)
    t.kill_daemon()
    t.wait("the end of the connection", function()
      return count("disconnected") == 1
    end)
    t.ctl("daemon", "start")
    t.wait("the resync", function()
      return count("resync") == 1
    end)
    create()
    t.wait("an event of the new daemon", function()
      return count("session-created") == 2
    end)
  end },
  { "two listeners get each event once", function()
    local rpc, first, second = require("ollm.rpc"), 0, 0
    t.call("daemon.status", {})
    local stop = rpc.listen(function(event)
      first = first + (event.kind == "session-created" and 1 or 0)
    end)
    stop()
    rpc.listen(function(event)
      second = second + (event.kind == "session-created" and 1 or 0)
    end)
    local session = t.call("session.create", { projectPath = t.project }).session
    t.call("session.record", { sessionId = session.sessionId, message = { role = "user", content = "hi" } })
    t.wait("the event", function()
      return second > 0
    end)
    t.equal({ 0, 1 }, { first, second })
  end },
}

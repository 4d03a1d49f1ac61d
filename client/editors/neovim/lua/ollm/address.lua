--- The address of the daemon: its home, the sockets at which it may listen, and the command that starts it.
---
--- Follows section 1 of the protocol. Opens no connection.

local text = require("ollm.text")

local M = {}

local uv = vim.uv

--- The longest path of a Unix socket, in bytes.
local MAX_SOCKET_BYTES = 103
--- The longest wait for `ollmctl daemon start`, in milliseconds; the command gives up after 10 seconds itself.
local START_MS = 15000

--- Returns an environment variable; an empty one counts as unset.
local function variable(name)
  local value = vim.env[name]
  return value ~= "" and value or nil
end

--- Returns the configured home and whether it was given, rather than the default.
local function given_home()
  local home = require("ollm").config.home or variable("OLLM_HOME")
  if home then
    return vim.fs.normalize(vim.fn.fnamemodify(home, ":p")):gsub("(.)/$", "%1"), true
  end
  return (uv.os_homedir() or "") .. "/.ollm", false
end

--- Returns the home directory of the daemon, with symbolic links resolved as far as it exists.
---@return string
function M.home()
  local home = given_home()
  return uv.fs_realpath(home) or home
end

--- Returns the id of a home directory as the daemon reports it, or nil if the directory does not exist.
---@param home string
---@return string?
function M.home_id(home)
  local stat = uv.fs_stat(home)
  return stat and ("%.0f:%.0f"):format(stat.dev, stat.ino)
end

--- Reads the socket in `daemon.json`, unless that file belongs to another home.
local function noted_socket(home)
  local file = io.open(home .. "/daemon.json", "r")
  if not file then
    return nil
  end
  local content = file:read(65536) or ""
  file:close()
  local is_json, noted = pcall(vim.json.decode, content)
  if not is_json or type(noted) ~= "table" or type(noted.socket) ~= "string" then
    return nil
  end
  if type(noted.homeId) == "string" and noted.homeId ~= M.home_id(home) then
    return nil
  end
  return noted.socket
end

--- The permission bits of a directory that let others write to it, and the one that keeps them from replacing files.
local WRITABLE, STICKY = tonumber("022", 8), tonumber("1000", 8)

--- Returns whether a socket belongs to this user or to root, in a directory in which nobody else can replace it;
--- another user could have created it to read what is sent.
local function is_own_socket(path)
  local function is_own(stat)
    return stat.uid == uv.getuid() or stat.uid == 0
  end
  local socket, directory = uv.fs_stat(path), uv.fs_stat(vim.fs.dirname(path))
  if not socket or not directory then
    return false
  end
  local is_closed = bit.band(directory.mode, WRITABLE) == 0 or bit.band(directory.mode, STICKY) ~= 0
  return socket.type == "socket" and is_own(socket) and is_own(directory) and is_closed
end

--- Returns the sockets to try, in order, and the id that the home of the daemon must have, or nil for any home.
---
--- The id is false if the home does not exist; no daemon can have it then.
---@return string[] sockets
---@return string|false|nil home_id
function M.sockets()
  local _, is_home_given = given_home()
  local home = M.home()
  local id = M.home_id(home) or false
  local chosen = require("ollm").config.socket or variable("OLLM_SOCKET")
  if chosen then
    if not is_home_given then
      id = nil
    end
    return { vim.fn.fnamemodify(chosen, ":p") }, id
  end
  local user, tag = uv.getuid(), text.fnv1a(home)
  local candidates = {
    ("/run/user/%d/ollm/%s.sock"):format(user, tag),
    home .. "/run/ollmd.sock",
    ("/tmp/ollm-%d/%s.sock"):format(user, tag),
  }
  local noted = noted_socket(home)
  if noted then
    table.insert(candidates, 1, noted)
  end
  local sockets, seen = {}, {}
  for _, path in ipairs(candidates) do
    if not seen[path] and #path <= MAX_SOCKET_BYTES and is_own_socket(path) then
      sockets[#sockets + 1] = path
    end
    seen[path] = true
  end
  return sockets, id
end

--- Returns the path of `ollmctl`, or nil if it is not found.
---@return string?
function M.ollmctl()
  local path = vim.fn.exepath(require("ollm").config.ollmctl)
  return path ~= "" and path or nil
end

--- Returns whether the daemon may be started when it does not run.
---@return boolean
function M.may_start()
  local no_spawn = variable("OLLM_NO_SPAWN")
  return no_spawn == nil or no_spawn == "0"
end

--- Returns the error for a program that is not installed.
local function not_installed()
  local name = require("ollm").config.ollmctl
  return {
    kind = "notInstalled",
    message = ("%s was not found; it starts the daemon"):format(text.one_line(name)),
    hint = "cargo install --locked --path .  # in a clone of ollm",
  }
end

--- Starts the daemon with `ollmctl daemon start`, which does nothing if it runs.
---@param callback fun(err: table?)
function M.start(callback)
  local program = M.ollmctl()
  if not program then
    return callback(not_installed())
  end
  local config = require("ollm").config
  local command = { program }
  for _, flag in ipairs({ "home", "socket" }) do
    if config[flag] then
      vim.list_extend(command, { "--" .. flag, vim.fn.fnamemodify(config[flag], ":p") })
    end
  end
  vim.list_extend(command, { "--color", "never", "daemon", "start" })
  local is_started, problem = pcall(vim.system, command, { text = true, timeout = START_MS }, function(done)
    vim.schedule(function()
      if done.code == 0 then
        return callback(nil)
      end
      -- `ollmctl` prints `error: ...` and, if there is one, `  try: ...`.
      local output = done.stderr or ""
      local message = output:match("error: ([^\n]*)") or output
      callback({
        kind = "notStarted",
        message = "the daemon did not start: " .. text.one_line(message),
        hint = output:match("try: ([^\n]*)") or "ollmctl doctor",
      })
    end)
  end)
  if not is_started then
    callback({ kind = "notStarted", message = "ollmctl cannot be run: " .. text.one_line(tostring(problem)) })
  end
end

return M

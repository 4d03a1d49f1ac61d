-- Shared by the tests: a model server, homes with a daemon, waiting, and answers to the questions of the plugin.

local M = {}

local uv = vim.uv
local scratch, bin = vim.env.OLLM_SCRATCH, vim.env.OLLM_BIN
local n_homes = 0
local processes, homes = {}, {}

--- The reports of `vim.notify`, in order.
M.notices = {}

--- Waits until a condition holds and returns its value; fails with what was awaited after a deadline.
function M.wait(what, condition, seconds)
  local value
  local is_met = vim.wait((seconds or 15) * 1000, function()
    value = condition()
    return value
  end, 5)
  if not is_met then
    error("did not happen: " .. what, 2)
  end
  return value
end

function M.equal(expected, found)
  if not vim.deep_equal(expected, found) then
    error(("expected %s\nfound    %s"):format(vim.inspect(expected), vim.inspect(found)), 2)
  end
end

function M.contains(text, part)
  if type(text) == "table" then
    text = table.concat(text, "\n")
  end
  if not text:find(part, 1, true) then
    error(("%q is not in\n%s"):format(part, text), 2)
  end
end

function M.lacks(text, part)
  if text:find(part, 1, true) then
    error(("%q is in\n%s"):format(part, text), 2)
  end
end

--- Runs a program and returns its output; fails if it fails.
function M.run(command, options)
  options = vim.tbl_extend("force", { text = true, timeout = 30000 }, options or {})
  local done = vim.system(command, options):wait()
  if done.code ~= 0 then
    error(("%s failed with %d: %s"):format(table.concat(command, " "), done.code, done.stderr or ""), 2)
  end
  return done.stdout
end

function M.ctl(...)
  return M.run(vim.list_extend({ bin .. "/ollmctl", "--home", M.home }, { ... }))
end

--- Starts a model server; returns its address.
function M.model_server(...)
  local output = ""
  local command = { vim.env.OLLM_PYTHON, vim.env.OLLM_PLUGIN .. "/../model_server.py", ... }
  processes[#processes + 1] = vim.system(command, {
    stdout = function(_, data)
      output = output .. (data or "")
    end,
  })
  return M.wait("the model server prints its address", function()
    return output:match("(http://%S+)\n")
  end)
end

local shared_server

--- Makes a new home whose daemon uses a model server, and a project; nothing runs yet.
function M.new_home(server)
  shared_server = shared_server or M.model_server()
  n_homes = n_homes + 1
  -- Resolved, because the daemon names paths so.
  local base = uv.fs_realpath(scratch) .. "/" .. n_homes
  M.home, M.project = base .. "h", base .. "p"
  vim.fn.mkdir(M.home, "p", tonumber("700", 8))
  vim.fn.mkdir(M.project, "p")
  local config = "models:\n  default: echo\nollama:\n  host: %s\n"
  vim.fn.writefile(vim.split(config:format(server or shared_server), "\n"), M.home .. "/config.yaml")
  vim.env.OLLM_HOME = M.home
  vim.cmd.cd(M.project)
  homes[#homes + 1] = M.home
  M.reload()
end

--- Forgets the plugin and loads it again, as a new editor would.
function M.reload()
  local loaded = package.loaded["ollm.rpc"]
  if loaded then
    loaded.close()
  end
  for name in pairs(package.loaded) do
    if name == "ollm" or vim.startswith(name, "ollm.") then
      package.loaded[name] = nil
    end
  end
  vim.g.loaded_ollm = nil
  pcall(vim.api.nvim_del_user_command, "Ollm")
  vim.cmd.runtime("plugin/ollm.lua")
  require("ollm").setup({ ollmctl = bin .. "/ollmctl" })
end

--- Puts the editor back into the state of its start, with one home for all tests that need no other.
local shared_home, shared_project
function M.reset()
  vim.cmd("silent! tabonly! | silent! only!")
  vim.cmd("silent! %bwipeout!")
  vim.cmd.enew()
  M.notices = {}
  vim.notify = function(message, level)
    M.notices[#M.notices + 1] = { message = message, level = level }
  end
  vim.ui.select = function(items, options)
    error("nobody answers: " .. (options.prompt or "") .. vim.inspect(items))
  end
  if not shared_home then
    M.new_home()
    shared_home, shared_project = M.home, M.project
  end
  M.home, M.project = shared_home, shared_project
  vim.env.OLLM_HOME = M.home
  vim.cmd.cd(M.project)
  M.reload()
end

--- Answers each `vim.ui.select` with the first item whose line has the next of `parts`; returns a table that gets what
--- was asked last.
function M.answer(...)
  local parts, asked = { ... }, {}
  vim.ui.select = function(items, options, callback)
    local part = table.remove(parts, 1)
    asked.prompt, asked.lines, asked.chosen = options.prompt, {}, nil
    for index, item in ipairs(items) do
      local line = options.format_item and options.format_item(item) or item
      asked.lines[index] = line
      if part and not asked.chosen and line:find(part, 1, true) then
        asked.chosen, asked.index = item, index
      end
    end
    asked.is_done = true
    vim.schedule(function()
      callback(asked.chosen, asked.index)
    end)
  end
  return asked
end

--- Returns all notices as one text.
function M.noticed()
  return table.concat(vim.tbl_map(function(notice)
    return notice.message
  end, M.notices), "\n")
end

--- Waits for a notice that has a text.
function M.wait_notice(part)
  return M.wait("a notice with " .. part .. "; there are: " .. M.noticed(), function()
    return M.noticed():find(part, 1, true)
  end)
end

--- Opens a new chat and returns it.
function M.new_chat()
  vim.cmd("Ollm chat new")
  return require("ollm.chat").current()
end

--- Returns what the chat shows.
function M.shown(chat)
  return table.concat(vim.api.nvim_buf_get_lines(chat.view.buffer, 0, -1, false), "\n")
end

--- Sends a message and waits until its turn has ended.
function M.turn(chat, message)
  M.wait("the chat is idle", function()
    return chat.turn == nil
  end)
  if not chat:send(message) then
    error("the message was not sent", 2)
  end
  M.wait("the turn ends", function()
    return chat.turn == nil
  end, 30)
end

--- Types keys as a user would, mappings included.
function M.type(keys)
  vim.api.nvim_feedkeys(vim.api.nvim_replace_termcodes(keys, true, true, true), "xt", false)
end

--- Calls a method of the daemon and returns the result.
function M.call(method, params)
  local err, result = require("ollm.rpc").call_sync(method, params, 10000)
  if err then
    error(method .. ": " .. err.message, 2)
  end
  return result
end

--- Returns the process of the daemon of the home in use.
function M.daemon_pid()
  local file = io.open(M.home .. "/daemon.json")
  local noted = vim.json.decode(file:read("*a"))
  file:close()
  return noted.pid
end

--- Kills the daemon and waits until it is gone.
function M.kill_daemon()
  local pid = M.daemon_pid()
  uv.kill(pid, "sigkill")
  M.wait("the daemon is gone", function()
    return uv.kill(pid, 0) ~= 0 or vim.fn.filereadable(("/proc/%d/cmdline"):format(pid)) == 1
      and #vim.fn.readblob(("/proc/%d/cmdline"):format(pid)) == 0
  end)
end

--- Describes the state for a failed test.
function M.describe()
  local lines = { "notices: " .. M.noticed() }
  local is_loaded, chats = pcall(require, "ollm.chat")
  local chat = is_loaded and chats.current()
  if chat and vim.api.nvim_buf_is_valid(chat.view.buffer) then
    lines[#lines + 1] = "shown:\n" .. M.shown(chat):sub(1, 3000)
  end
  return table.concat(lines, "\n")
end

--- Ends everything that was started.
function M.stop()
  local loaded = package.loaded["ollm.rpc"]
  if loaded then
    loaded.close()
  end
  for _, home in ipairs(homes) do
    vim.system({ bin .. "/ollmctl", "--home", home, "daemon", "stop" }, { timeout = 15000 }):wait()
  end
  for _, process in ipairs(processes) do
    process:kill("sigterm")
  end
end

return M

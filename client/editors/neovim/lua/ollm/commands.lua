--- The subcommands of `:Ollm`: one table with what each does, its form, its help and its completion.

local M = {}

--- The longest wait for completions that the daemon has, in milliseconds.
local COMPLETE_MS = 400
--- Sessions that are completed.
local MAX_SESSIONS = 50

--- Returns what a method returns, for completion; nil if the daemon is not connected, because nothing waits then.
local function ask(method, params)
  local rpc = require("ollm.rpc")
  if not rpc.hello() then
    return nil
  end
  local err, result = rpc.call_sync(method, params, COMPLETE_MS)
  return not err and result or nil
end

local function session_ids()
  local page = ask("session.list", { limit = MAX_SESSIONS })
  return vim.tbl_map(function(session)
    return session.shortId or session.sessionId
  end, page and page.data or {})
end

local function model_names()
  local models = ask("model.list", {})
  return vim.tbl_map(function(model)
    return model.model
  end, models and models.data or {})
end

--- Opens the chat in use, the current session of the project, a new session, or one by its id.
local function chat(argument)
  local chats, target, ui = require("ollm.chat"), require("ollm.target"), require("ollm.ui")
  if argument == "new" then
    return chats.new():open()
  elseif argument ~= "" then
    return target.named_session(argument, ui.reporting(function(session_id)
      chats.for_session(session_id):open()
    end))
  end
  target.with_chat(function(found)
    found:open()
  end)
end

local function send(argument, command)
  local own = require("ollm.chat").of_buffer(vim.api.nvim_get_current_buf())
  if own then
    return own.view:submit(argument)
  end
  local has_range = command.range > 0
  require("ollm.send").send(argument, has_range and command.line1 or nil, has_range and command.line2 or nil)
end

local function retry()
  require("ollm.target").with_chat(function(found)
    found:open()
    found:send(nil)
  end)
end

local function stop()
  local found = require("ollm.chat").current()
  if not found or not found:stop() then
    require("ollm.ui").info("no answer is running")
  end
end

--- The subcommands, in the order of the help. `run` gets the text behind the name, and the command of Neovim.
M.LIST = {
  { name = "chat", form = "chat [new|ID]", help = "open the chat: the one in use, a new one, or that of a session",
    run = chat, complete = function()
      return vim.list_extend({ "new" }, session_ids())
    end },
  { name = "send", form = "send [QUESTION]", help = "send the selected lines, or the whole file, with a question",
    run = send },
  { name = "stop", form = "stop", help = "stop the answer; what has arrived is kept", run = stop },
  { name = "retry", form = "retry", help = "ask for an answer to the last message again", run = retry },
  { name = "sessions", form = "sessions [WORDS]", help = "choose a session, by words of its title",
    run = function(argument)
      require("ollm.pickers").sessions(argument)
    end },
  { name = "recall", form = "recall [QUESTION]", help = "find what was said about a question, in all sessions",
    run = function(argument)
      require("ollm.pickers").recall(argument)
    end },
  { name = "undo", form = "undo [N]", help = "take back the last turn or change; shows a plan if files were written",
    run = function(argument)
      require("ollm.undo").run("undo", argument)
    end },
  { name = "redo", form = "redo [N]", help = "put back what was undone", run = function(argument)
    require("ollm.undo").run("redo", argument)
  end },
  { name = "tree", form = "tree", help = "go on behind an earlier message, or on another branch", run = function()
    require("ollm.pickers").tree()
  end },
  { name = "context", form = "context [compact]", help = "show how full the window is, or compact the conversation",
    run = function(argument)
      require("ollm.panels").context(argument)
    end, complete = function()
      return { "compact" }
    end },
  { name = "goal", form = "goal [create TEXT|done]", help = "show the goals, set one, or complete the active one",
    run = function(argument)
      require("ollm.panels").goal(argument)
    end, complete = function()
      return { "create", "done" }
    end },
  { name = "remember", form = "remember [--project|--global] TEXT", help = "keep a text in every context",
    run = function(argument)
      require("ollm.panels").remember(argument)
    end, complete = function()
      return { "--global", "--project" }
    end },
  { name = "facts", form = "facts", help = "list the facts that you stated, and forget one", run = function()
    require("ollm.pickers").facts()
  end },
  { name = "files", form = "files", help = "list the files that tools read or changed, and open one", run = function()
    require("ollm.pickers").files()
  end },
  { name = "model", form = "model [NAME]", help = "choose the model of the session", run = function(argument)
    require("ollm.pickers").model(argument)
  end, complete = model_names },
}

--- Returns the subcommand of a name, or nil.
local function find(name)
  for _, entry in ipairs(M.LIST) do
    if entry.name == name then
      return entry
    end
  end
end

--- Runs `:Ollm`; without a subcommand, it opens the chat.
---@param command table as `nvim_create_user_command` passes it
function M.run(command)
  require("ollm.ui").define_highlights()
  local name, argument = command.args:match("^(%S*)%s*(.-)%s*$")
  local entry = find(name == "" and "chat" or name)
  if not entry then
    local names = vim.tbl_map(function(known)
      return known.name
    end, M.LIST)
    local message = ("there is no :Ollm %s; there are %s"):format(name, table.concat(names, ", "))
    return require("ollm.ui").error({ message = message, hint = ":help ollm-commands" })
  end
  entry.run(argument, command)
end

--- Completes subcommands, then their first argument.
---@param lead string
---@param line string
---@param position integer
---@return string[]
function M.complete(lead, line, position)
  local before = line:sub(1, position)
  local name, rest = before:match("Ollm!?%s+(%S+)%s+(.*)$")
  local candidates = {}
  if not name then
    candidates = vim.tbl_map(function(entry)
      return entry.name
    end, M.LIST)
  elseif not rest:find("%s") then
    local entry = find(name)
    candidates = entry and entry.complete and entry.complete() or {}
  end
  local found = vim.tbl_filter(function(candidate)
    return vim.startswith(candidate, lead)
  end, candidates)
  if not name then
    table.sort(found)
  end
  return found
end

return M

--- The session that a command means: that of the chat in use, else the current session of the project.

local chats = require("ollm.chat")
local rpc = require("ollm.rpc")
local ui = require("ollm.ui")

local M = {}

local uv = vim.uv

--- The permission bit of directories that everybody may write to, such as `/tmp`.
local WRITABLE_BY_ALL = 2

--- Returns the directories above a project whose current session counts too, the nearest first: those below the user's
--- home that not everybody may write to.
local function directories_above(path)
  local home = uv.fs_realpath(uv.os_homedir() or "/") or "/"
  local above = {}
  for directory in vim.fs.parents(path) do
    local stat = uv.fs_stat(directory)
    local holds_home = vim.startswith(home .. "/", directory == "/" and "/" or directory .. "/")
    if holds_home or not stat or bit.band(stat.mode, WRITABLE_BY_ALL) ~= 0 then
      break
    end
    above[#above + 1] = directory
  end
  return above
end

--- Finds the current session of the project. The callback gets an error, or the id if there is one.
---@param callback fun(err: table?, session_id: string?)
function M.current_session(callback)
  local project = chats.project()
  if not project then
    return callback({ message = "the current directory is gone", hint = ":cd" })
  end
  local params = { projectPath = project }
  local above = directories_above(project)
  if #above > 0 then
    params.elseOf = above
  end
  rpc.call("session.current", params, nil, function(err, result)
    callback(err, result and result.session and result.session.sessionId)
  end)
end

--- Finds the session of a name: an id, or the beginning or the end of one.
---@param name string
---@param callback fun(err: table?, session_id: string?)
function M.named_session(name, callback)
  local digits = name:gsub("-", "")
  if #digits < 4 or digits:find("%X") then
    return callback({ message = ("%s is not an id of a session"):format(name), hint = ":Ollm sessions" })
  end
  local function try(keys)
    local key = table.remove(keys, 1)
    rpc.call("session.list", { [key] = name, limit = 2 }, nil, function(err, page)
      if err then
        return callback(err)
      elseif #page.data == 1 then
        return callback(nil, page.data[1].sessionId)
      elseif #page.data > 1 then
        return callback({ message = ("several sessions have the id %s"):format(name), hint = ":Ollm sessions" })
      elseif #keys > 0 then
        return try(keys)
      end
      callback({ message = ("there is no session %s"):format(name), hint = ":Ollm sessions" })
    end)
  end
  try({ "idEnd", "idPrefix" })
end

--- Passes on the chat in use, else one of the current session of the project, else a new one.
---@param callback fun(chat: ollm.Chat)
function M.with_chat(callback)
  local chat = chats.current()
  if chat then
    return callback(chat)
  end
  M.current_session(function(err, session_id)
    if err then
      return ui.error(err)
    end
    callback(session_id and chats.for_session(session_id) or chats.new())
  end)
end

--- Passes on the id of the session that a command means; reports that there is none.
---@param callback fun(session_id: string, chat: ollm.Chat?)
function M.with_session(callback)
  local chat = chats.current()
  if chat and chat:id() then
    return callback(chat:id(), chat)
  end
  M.current_session(function(err, session_id)
    if not err and not session_id then
      err = { message = "this directory has no current session", hint = ":Ollm chat" }
    end
    if err then
      return ui.error(err)
    end
    callback(session_id, chats.of_session(session_id))
  end)
end

return M

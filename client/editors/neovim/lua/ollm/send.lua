--- Sends lines of a buffer to the model, in a fence with their path, their numbers and their language.

local chats = require("ollm.chat")
local target = require("ollm.target")
local text = require("ollm.text")
local ui = require("ollm.ui")

local M = {}

local api = vim.api

--- The largest text that is sent, in bytes. A window holds much less, and a frame twice as much.
local MAX_BYTES = 8 * 1024 * 1024

--- Returns the path of a buffer, relative to the project if it is in it.
local function path_of(buffer)
  local name = api.nvim_buf_get_name(buffer)
  if name == "" then
    return "a buffer without a file"
  end
  local project = chats.project()
  local real = vim.uv.fs_realpath(name) or name
  if project and vim.startswith(real, project .. "/") then
    return real:sub(#project + 2)
  end
  return name
end

--- Returns a message: the question, the place of the lines, and the lines.
---@param question string
---@param place {path: string, first: integer, last: integer, is_whole: boolean, language: string}
---@param lines string[]
---@return string
function M.message(question, place, lines)
  -- A buffer has line feeds in place of NUL characters.
  local code = table.concat(vim.tbl_map(function(line)
    return (line:gsub("\n", ""))
  end, lines), "\n")
  local fence = text.fence(code)
  local range = place.first == place.last and ("line %d"):format(place.first)
    or ("lines %d-%d"):format(place.first, place.last)
  if place.is_whole then
    range = "the whole file, " .. text.counted(place.last, "line")
  end
  local parts = { ("%s, %s:"):format(text.one_line(place.path), range), fence .. place.language, code, fence }
  if question:find("%S") then
    table.insert(parts, 1, vim.trim(question) .. "\n")
  end
  return table.concat(parts, "\n")
end

--- Returns the language of a buffer for a fence, which ends at white space.
local function language_of(buffer)
  return (vim.bo[buffer].filetype:gsub("[^%w_+#.-]", ""))
end

--- Sends the message to the chat in use and shows it, without leaving the window if the chat opens beside it.
---@param message string
---@param on_accepted? fun(err: table?)
function M.deliver(message, on_accepted)
  target.with_chat(function(chat)
    if not chat:send(message, on_accepted) then
      return
    end
    local window = api.nvim_get_current_win()
    local tab = api.nvim_get_current_tabpage()
    local was_visible = #vim.tbl_filter(function(shown)
      return api.nvim_win_get_tabpage(shown) == tab
    end, vim.fn.win_findbuf(chat.view.buffer)) > 0
    if was_visible then
      return
    end
    chat:open()
    if api.nvim_get_current_tabpage() == tab and api.nvim_win_is_valid(window)
      and api.nvim_win_get_buf(window) ~= chat.view.buffer then
      api.nvim_set_current_win(window)
    end
  end)
end

--- Sends lines of the current buffer. Asks for the question if there is none.
---@param question string
---@param first integer? the first line of the range, or nil for the whole buffer
---@param last integer?
---@param on_accepted? fun(err: table?)
function M.send(question, first, last, on_accepted)
  local buffer = api.nvim_get_current_buf()
  local n_lines = api.nvim_buf_line_count(buffer)
  local place = {
    path = path_of(buffer), first = first or 1, last = last or n_lines, is_whole = first == nil,
    language = language_of(buffer),
  }
  local lines = api.nvim_buf_get_lines(buffer, place.first - 1, place.last, false)
  local function deliver(words)
    local message = M.message(words, place, lines)
    if #message > MAX_BYTES then
      local problem = ("the text has %s bytes; at most 8 MiB can be sent"):format(text.grouped(#message))
      return ui.error({ message = problem, hint = ":'<,'>Ollm send" })
    end
    M.deliver(message, on_accepted)
  end
  if question:find("%S") then
    return deliver(question)
  end
  vim.ui.input({ prompt = "Question about " .. text.one_line(place.path) .. ": " }, function(words)
    if words then
      deliver(words)
    end
  end)
end

return M

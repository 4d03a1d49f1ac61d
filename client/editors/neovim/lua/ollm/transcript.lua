--- The records of a session as lines of Markdown, with the places of highlights, folds and messages.
---
--- Pure: knows neither windows nor the daemon. A block of records is appended to a page; a page is what a buffer shows:
--- `{lines, marks[{line, last, group}], folds[{first, last, label}], anchors[{line, seq}]}`, all lines from 0.

local text = require("ollm.text")

local M = {}

--- Results of tools with more lines are folded.
local MAX_OPEN_LINES = 12
--- The characters of a call's arguments that are shown.
local MAX_ARGS = 200

--- Reasons for which an answer ended early.
local EARLY = { canceled = true, timeout = true, interrupted = true, length = true }

--- Returns an empty page.
function M.page()
  return { lines = {}, marks = {}, folds = {}, anchors = {} }
end

--- Returns a page to which more can be added, while the given one stays as it is.
---@param page table
function M.copy(page)
  return {
    lines = vim.list_slice(page.lines), marks = vim.list_slice(page.marks), folds = vim.list_slice(page.folds),
    anchors = vim.list_slice(page.anchors),
  }
end

local function add(page, line)
  page.lines[#page.lines + 1] = line
end

local function mark(page, first, group)
  page.marks[#page.marks + 1] = { line = first, last = #page.lines - 1, group = group }
end

--- Adds the line that begins a message: its author, then its number and its time.
---@param page table
---@param author string
---@param details string
---@param group string
---@param seq integer?
function M.heading(page, author, details, group, seq)
  if #page.lines > 0 then
    add(page, "")
  end
  add(page, text.one_line(author) .. (details ~= "" and "  " .. details or ""))
  mark(page, #page.lines - 1, group)
  if seq then
    page.anchors[#page.anchors + 1] = { line = #page.lines - 1, seq = seq }
  end
  -- Markdown would take a line of dashes below the heading for a part of it.
  add(page, "")
end

--- Adds Markdown of a message. A code fence that the message left open is closed, so that the next message is no code.
---@param page table
---@param markdown string
---@param is_open? boolean whether more of the text follows
function M.markdown(page, markdown, is_open)
  local lines = text.lines(is_open and markdown or (markdown:gsub("\n+$", "")))
  vim.list_extend(page.lines, lines)
  local fence = not is_open and text.open_fence(lines)
  if fence then
    add(page, fence)
  end
end

--- Adds thinking: quoted, dimmed, and folded unless more of it follows.
---@param page table
---@param thinking string
---@param is_open? boolean
function M.thinking(page, thinking, is_open)
  local first = #page.lines
  for _, line in ipairs(text.lines(is_open and thinking or (thinking:gsub("\n+$", "")))) do
    add(page, "> " .. line)
  end
  mark(page, first, "OllmDim")
  if not is_open then
    page.folds[#page.folds + 1] = { first = first, last = #page.lines - 1, label = "thinking" }
    add(page, "")
  end
end

--- Adds a remark about the conversation.
---@param page table
---@param line string
---@param group? string
---@param is_joined? boolean whether the line belongs to the one above
function M.note(page, line, group, is_joined)
  if #page.lines > 0 and page.lines[#page.lines] ~= "" and not is_joined then
    add(page, "")
  end
  add(page, line)
  mark(page, #page.lines - 1, group or "OllmDim")
end

--- Adds an output, as code that no Markdown in it can end.
local function verbatim(page, output, label)
  local lines = text.lines((output:gsub("\n+$", "")))
  -- Of the lines as they are shown: what is removed from them may part the backticks of a fence.
  local fence = text.fence(table.concat(lines, "\n"))
  local first = #page.lines
  add(page, fence)
  vim.list_extend(page.lines, lines)
  add(page, fence)
  if #lines > MAX_OPEN_LINES then
    page.folds[#page.folds + 1] = { first = first, last = #page.lines - 1, label = label }
  end
end

local function call_line(name, args)
  local is_json, shown = pcall(vim.json.encode, args == nil and vim.empty_dict() or args)
  shown = is_json and text.one_line(shown) or "..."
  if #shown > MAX_ARGS then
    shown = text.clip(shown, MAX_ARGS)
  end
  return ("calls %s %s"):format(text.one_line(name), shown)
end

local function add_part(page, part, role)
  if part.type == "thinking" then
    M.thinking(page, part.text or "")
  elseif part.type == "toolCall" then
    M.note(page, call_line(part.name, part.args), "OllmTool")
  elseif part.type == "image" then
    M.note(page, ("[image, %s, %s bytes]"):format(text.one_line(part.mimeType), text.grouped(#(part.data or "") * 0.75)))
  elseif part.type == "text" and role == "tool" then
    verbatim(page, part.text, "result")
  elseif part.type == "text" then
    M.markdown(page, part.text)
  end
end

local AUTHORS = {
  user = { "You", "OllmUser" },
  system = { "System", "OllmDim" },
  tool = { "Tool", "OllmTool" },
  assistant = { "Assistant", "OllmAssistant" },
}

local function add_message(page, record)
  local message = record.message
  local author, group = unpack(AUTHORS[message.role] or AUTHORS.system)
  if message.role == "assistant" and message.model then
    author = message.model
  elseif message.toolName then
    author = author .. " " .. message.toolName
  end
  local details = ("#%d %s"):format(record.seq, text.clock(message.timestamp or record.at))
  M.heading(page, author, details, group, record.seq)
  for _, part in ipairs(message.parts or {}) do
    add_part(page, part, message.role)
  end
  if EARLY[message.finishReason] then
    local words = { length = "the limit of tokens ended the answer" }
    M.note(page, ("(%s)"):format(words[message.finishReason] or message.finishReason))
  end
end

local function add_tool_call(page, record)
  local call = record.toolCall
  M.heading(page, "Tool " .. (call.name or ""), ("#%d"):format(record.seq), "OllmTool", record.seq)
  M.note(page, call_line(call.name, call.args), "OllmTool")
  local result = call.result or {}
  verbatim(page, result.displayContent or result.llmContent or "", "result of " .. text.one_line(call.name))
  if result.error then
    M.note(page, "failed: " .. text.one_line(result.error), "OllmError")
  end
  for _, write in ipairs(call.writes or {}) do
    M.note(page, "wrote " .. text.one_line(write.path))
  end
end

--- Adds notes that stand for other records, folded.
local function add_summary(page, record, title, summary)
  M.heading(page, title, ("#%d"):format(record.seq), "OllmDim", record.seq)
  local first = #page.lines
  for _, line in ipairs(text.lines(summary or "")) do
    add(page, "> " .. line)
  end
  mark(page, first, "OllmDim")
  page.folds[#page.folds + 1] = { first = first, last = #page.lines - 1, label = "notes" }
end

local function add_compaction(page, record)
  local compaction = record.compaction
  local checkpoints = compaction.checkpoints or {}
  local summary = compaction.summary ~= "" and compaction.summary or (checkpoints[#checkpoints] or {}).summary
  local tokens = text.grouped(compaction.tokensBefore or 0)
  add_summary(page, record, ("Compaction, %s tokens before"):format(tokens), summary)
end

--- The functions that show a record of each kind; all others are not shown.
local KINDS = {
  message = add_message,
  toolCall = add_tool_call,
  compaction = add_compaction,
  branchSummary = function(page, record)
    add_summary(page, record, "Summary of another branch", record.branchSummary.summary)
  end,
  mode = function(page, record)
    M.note(page, ("mode: %s  #%d"):format(text.one_line(record.mode.mode or record.mode.to), record.seq))
  end,
  putBack = function(page, record)
    M.note(page, ("files were put back  #%d"):format(record.seq))
  end,
  custom = function(page, record)
    local custom = record.custom
    if custom.contextText then
      M.heading(page, custom.name, ("#%d"):format(record.seq), "OllmDim", record.seq)
      M.markdown(page, custom.contextText)
    end
  end,
}

--- Adds a record to a page, if people read records of its kind.
---@param page table
---@param record table
---@param session_id string
function M.record(page, record, session_id)
  if record.sizeBytes then
    local size = text.grouped(record.sizeBytes)
    M.note(page, ("#%d has %s bytes and is not shown: ollmctl sessions view %s"):format(record.seq, size, session_id))
  elseif KINDS[record.type] and record[record.type] then
    KINDS[record.type](page, record)
  end
end

return M

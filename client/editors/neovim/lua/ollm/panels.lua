--- The context of a session: how full it is, its goals, and remembered texts.

local chats = require("ollm.chat")
local rpc = require("ollm.rpc")
local target = require("ollm.target")
local text = require("ollm.text")
local ui = require("ollm.ui")

local M = {}

--- The longest wait for a compaction, in milliseconds: a model writes the summary.
local COMPACT_MS = 600000
--- Cells of the drawing of a part.
local CELLS = 24
--- Words and bytes of a text in the key of its context entry, as `ollmctl remember` has it.
local KEY_WORDS, KEY_BYTES = 5, 40

local PARTS = {
  system = "system prompt", entries = "remembered texts", goals = "goals", tools = "tools", checkpoints = "checkpoints",
  user = "user messages", recent = "answers and results", free = "free", reserve = "answer reserve",
}

--- Returns `context.status` as lines.
---@param status table
---@return string[]
function M.context_lines(status)
  local lines = {
    ("%s of %s tokens (%d %%)"):format(text.grouped(status.contextTokens), text.grouped(status.promptLimit),
      status.usedPercent),
    "",
  }
  for _, part in ipairs(status.parts or {}) do
    if part.tokens > 0 then
      local cells = math.ceil(part.tokens / math.max(1, status.contextSize) * CELLS)
      local name = PARTS[part.name] or text.one_line(part.name)
      lines[#lines + 1] = ("%-20s %9s  %s"):format(name, text.grouped(part.tokens), ("█"):rep(cells))
    end
  end
  vim.list_extend(lines, {
    ("%-20s %9s"):format("window", text.grouped(status.contextSize)),
    "",
    ("compaction   at %s tokens of conversation, now %s"):format(text.grouped(status.triggerTokens),
      text.grouped(status.conversationTokens)),
    ("strategy     %s"):format(text.one_line(status.strategy)),
    ("counts       %s%s"):format(status.countKind, status.model and " for " .. text.one_line(status.model) or ""),
  })
  if status.reliability then
    local reason = text.one_line(status.reliability.reason)
    lines[#lines + 1] = ("reliability  %d: %s"):format(status.reliability.score, reason)
  end
  return lines
end

local function compact(session_id)
  ui.info("compacting; :Ollm chat shows how far it is")
  rpc.call("context.compact", { sessionId = session_id }, { timeout = COMPACT_MS }, ui.reporting(function(done)
    if not done.compacted then
      return ui.info("nothing was compacted: " .. text.one_line(done.reason))
    end
    local before, now = text.grouped(done.tokensBefore), text.grouped(done.tokensAfter)
    ui.info(("compacted: %s tokens before, %s now"):format(before, now))
  end))
end

--- Shows how full the context is, or compacts it.
---@param argument string nothing or `compact`
function M.context(argument)
  if argument ~= "" and argument ~= "compact" then
    local message = "there is no :Ollm context " .. text.one_line(argument)
    return ui.error({ message = message, hint = ":Ollm context compact" })
  end
  target.with_session(function(session_id)
    if argument == "compact" then
      return compact(session_id)
    end
    rpc.call("context.status", { sessionId = session_id }, nil, ui.reporting(function(status)
      ui.float("Context", M.context_lines(status))
    end))
  end)
end

--- Returns goals as lines.
local function goal_lines(goals)
  local lines = {}
  for _, goal in ipairs(goals) do
    lines[#lines + 1] = ("%s  %s"):format(goal.status, text.one_line(goal.description))
    for _, checkpoint in ipairs(goal.checkpoints or {}) do
      lines[#lines + 1] = ("  - %s (%s)"):format(text.one_line(checkpoint.description), checkpoint.status)
    end
    for _, decision in ipairs(goal.decisions or {}) do
      if not decision.supersededBy then
        lines[#lines + 1] = "  decided: " .. text.one_line(decision.description)
      end
    end
    for _, step in ipairs(goal.nextSteps or {}) do
      lines[#lines + 1] = "  next: " .. text.one_line(step)
    end
  end
  return lines
end

--- Runs a step for the goals of the session in use, which is made if the chat is new.
local function change_goal(step, report)
  target.with_chat(function(chat)
    chat:with_session(ui.reporting(function(session_id)
      rpc.call("goal.change", { sessionId = session_id, steps = { step } }, nil, ui.reporting(function(changed)
        ui.info(report(changed.goal or {}))
      end))
    end))
  end)
end

--- Shows the goals, sets one, or completes the active one.
---@param argument string nothing, `create TEXT` or `done`
function M.goal(argument)
  local words = argument:match("^create%s+(.*)$")
  if words and words:find("%S") then
    return change_goal({ action = "create", description = text.utf8(words) }, function(goal)
      return "the goal is: " .. text.one_line(goal.description)
    end)
  elseif argument == "done" then
    return change_goal({ action = "update", status = "completed" }, function(goal)
      return "completed: " .. text.one_line(goal.description)
    end)
  elseif argument ~= "" then
    return ui.error({ message = "goals are shown, created or done", hint = ":Ollm goal create Port the parser" })
  end
  target.with_session(function(session_id)
    rpc.call("goal.list", { sessionId = session_id }, nil, ui.reporting(function(goals)
      if #goals.data == 0 then
        return ui.info("no goals yet; :Ollm goal create TEXT sets one")
      end
      ui.float("Goals", goal_lines(goals.data))
    end))
  end)
end

--- Returns the key of a remembered text: the same as that of `ollmctl remember`, so that a repeated text is one entry.
---@param remembered string
---@return string
function M.entry_key(remembered)
  local words = {}
  for word in vim.fn.tolower(remembered):gmatch("[%w\128-\255]+") do
    words[#words + 1] = #words < KEY_WORDS and word or nil
  end
  local name = vim.fn.strcharpart(table.concat(words, "-"), 0, KEY_BYTES):gsub("%-+$", "")
  return ("remember-%s-%s"):format(name, text.fnv1a(remembered))
end

--- Keeps a text in every context of the session, of the project or of all sessions.
---@param argument string `[--project|--global] TEXT`
function M.remember(argument)
  local scope, words = argument:match("^%-%-(%a+)%s+(.*)$")
  local remembered = vim.trim(text.utf8(words or argument))
  if remembered == "" or (scope and scope ~= "project" and scope ~= "global") then
    return ui.error({ message = "a text is missing", hint = ":Ollm remember --project The staging port is 48213." })
  end
  local params = { key = M.entry_key(remembered), content = remembered, source = "user" }
  local function add(place)
    rpc.call("context.addEntry", params, nil, ui.reporting(function(added)
      local tokens = ("%s of %s tokens"):format(text.grouped(added.tokens), text.grouped(added.tokenLimit))
      ui.info((added.changed and "remembered %s; " or "was remembered already %s; "):format(place) .. tokens)
    end))
  end
  if scope == "global" then
    params.scope = "global"
    return add("in all sessions")
  elseif scope == "project" then
    params.projectPath = chats.project()
    return add("in this project")
  end
  target.with_chat(function(chat)
    chat:with_session(ui.reporting(function(session_id)
      params.sessionId = session_id
      add("in this session")
    end))
  end)
end

return M

--- `:Ollm undo` and `:Ollm redo`. If tools wrote files, the plan for them is shown as a quickfix list before anything
--- happens, and the user decides.

local rpc = require("ollm.rpc")
local target = require("ollm.target")
local text = require("ollm.text")
local ui = require("ollm.ui")

local M = {}

--- The longest wait for files to be put back, in milliseconds.
local APPLY_MS = 120000

--- Words for each action on a file, before and after it.
local VERBS = {
  replace = { "put back", "put back" },
  setMode = { "put back its permissions", "put back its permissions" },
  create = { "recreate", "recreated" },
  remove = { "remove", "removed" },
}
local STATUS = {
  conflict = "stays: somebody else changed it",
  unknown = "stays: its earlier content is not known",
  unchanged = "is as it should be",
  outside = "stays: it is outside of the project",
  inGit = "stays: it belongs to git",
  failed = "stays: the system refused",
}
local LOSSES = {
  hardLinks = "its hard links", group = "its group", specialBits = "its set-ID bits", acl = "its access control list",
  extendedAttributes = "extended attributes",
}

--- Returns what happens to a file of a plan, in words.
local function words_of(file, is_applied)
  local verbs = file.status == "putBack" and (VERBS[file.action] or VERBS.replace)
  local words = verbs and verbs[is_applied and 2 or 1] or STATUS[file.status] or text.one_line(file.status)
  if file.reason then
    words = words .. " (" .. text.one_line(file.reason) .. ")"
  elseif file.loses and #file.loses > 0 then
    local lost = vim.tbl_map(function(loss)
      return LOSSES[loss] or text.one_line(loss)
    end, file.loses)
    words = words .. " (loses " .. table.concat(lost, ", ") .. ")"
  end
  return words
end

--- Returns the files of which a buffer has changes that are not saved, as a set of paths.
local function unsaved_files()
  local files = {}
  for _, buffer in ipairs(vim.api.nvim_list_bufs()) do
    local name = vim.bo[buffer].modified and vim.api.nvim_buf_get_name(buffer) or ""
    if name ~= "" then
      -- The daemon names projects without links, unlike an editor that was started behind one.
      files[vim.uv.fs_realpath(name) or name] = true
    end
  end
  return files
end

--- Returns the items of the quickfix list for a plan.
---@param plan table
---@return table[]
function M.items(plan)
  local items, unsaved = {}, unsaved_files()
  for _, file in ipairs(plan.files or {}) do
    local path = (plan.root and plan.root .. "/" or "") .. text.one_line(file.path)
    -- Without a project, a path of a session could be an address such as `scp://`, which opens a connection.
    local filename = vim.startswith(path, "/") and path or nil
    local words = words_of(file, plan.applied)
    if not plan.applied and file.status == "putBack" and unsaved[path] then
      words = words .. " (a buffer has unsaved changes)"
    end
    items[#items + 1] = {
      filename = filename, lnum = filename and 1, text = filename and words or path .. ": " .. words,
      type = file.status == "putBack" and "I" or "W",
    }
  end
  if (plan.unlisted or 0) > 0 then
    items[#items + 1] = { text = "and " .. text.counted(plan.unlisted, "more file"), type = "I" }
  end
  for _, call in ipairs(plan.unrecorded or {}) do
    local tool = text.one_line(call.tool)
    local words = ("#%d: what %s wrote, if anything, is not recorded and stays"):format(call.seq, tool)
    if call.unfinished then
      words = ("#%d: the result of %s is not recorded, so nobody knows what it wrote"):format(call.seq, tool)
    elseif call.omitted then
      words = ("#%d: %s wrote %s without a record"):format(call.seq, tool, text.counted(call.omitted, "file"))
    end
    items[#items + 1] = { text = words, type = "W" }
  end
  for _, kept in ipairs(plan.kept or {}) do
    local words = "a content that is nowhere else is kept in this file"
    local file = text.one_line(kept.file)
    local filename = vim.startswith(file, "/") and file or plan.root and plan.root .. "/" .. file or nil
    words = filename and words or file .. ": " .. words
    items[#items + 1] = { filename = filename, lnum = filename and 1, text = words, type = "W" }
  end
  return items
end

--- Shows a plan as the quickfix list, below, and stays in the window.
local function show_plan(verb, plan)
  local title = plan.applied and ("ollm %s: what happened to files"):format(verb)
    or ("ollm %s: what would happen to files"):format(verb)
  vim.fn.setqflist({}, " ", { title = title, items = M.items(plan) })
  local window = vim.api.nvim_get_current_win()
  vim.cmd("botright copen")
  if vim.api.nvim_win_is_valid(window) then
    vim.api.nvim_set_current_win(window)
  end
  vim.cmd.redraw()
end

--- Reports the operations that were taken back, or put back.
local function report(verb, result)
  local done = verb == "undo" and "undone" or "redone"
  local operations = result.operations or {}
  local lines = { ("%s: %s"):format(done, text.counted(#operations, "operation")) }
  if #operations == 1 then
    -- One line of the screen, because more would wait for a key.
    local words = text.clip(operations[1].text, math.max(20, vim.o.columns - 55))
    lines[1] = ("%s: %s %s"):format(done, operations[1].kind, words)
  end
  local files = result.files
  if files and files.applied then
    lines[#lines + 1] = text.counted(files.counts and files.counts.putBack or 0, "file") .. " put back"
  end
  ui.info(table.concat(lines, "; "))
end

--- Carries the call out: with the plan for files, or for the conversation only.
local function apply(verb, session_id, steps, preview, plan_id)
  local params = { sessionId = session_id, steps = steps }
  if plan_id then
    params.files, params.planId = "apply", plan_id
  elseif preview.operations[1] then
    -- The operation that the user saw, and not another one that came meanwhile.
    params.operation = preview.operations[1].seq
  end
  rpc.call("session." .. verb, params, { timeout = APPLY_MS }, ui.reporting(function(result)
    if result.files and result.files.applied then
      show_plan(verb, result.files)
      vim.cmd("silent! checktime")
    end
    report(verb, result)
  end))
end

--- Asks what to do with a plan for files.
local function ask(verb, session_id, steps, preview)
  local plan = preview.files
  local n_files = plan.counts and plan.counts.putBack or 0
  local with_files = ("%s, and put %s back"):format(verb, text.counted(n_files, "file"))
  local without_files = ("%s the conversation, and leave the files"):format(verb)
  local answers = { without_files, "nothing" }
  local is_unfinished = vim.iter(plan.unrecorded or {}):any(function(call)
    return call.unfinished
  end)
  if n_files > 0 and not is_unfinished then
    table.insert(answers, 1, with_files)
  end
  ui.ask("The quickfix list shows what would happen to files:", answers, function(answer)
    if answer == with_files then
      apply(verb, session_id, steps, preview, plan.planId)
    elseif answer == without_files then
      apply(verb, session_id, steps, preview, nil)
    else
      ui.info("nothing changed")
    end
  end)
end

--- Takes operations back, or puts them back.
---@param verb "undo"|"redo"
---@param argument string the number of operations, or nothing for one
function M.run(verb, argument)
  local steps = argument == "" and 1 or tonumber(argument)
  if not steps or steps < 1 or steps > 1000 or steps ~= math.floor(steps) then
    return ui.error({ message = "the number of operations is 1 to 1000", hint = (":Ollm %s 2"):format(verb) })
  end
  target.with_session(function(session_id)
    local params = { sessionId = session_id, steps = steps, files = "preview" }
    rpc.call("session." .. verb, params, { timeout = APPLY_MS }, ui.reporting(function(preview)
      local plan = preview.files or {}
      if #(plan.files or {}) == 0 and #(plan.kept or {}) == 0 then
        return apply(verb, session_id, steps, preview, nil)
      end
      show_plan(verb, plan)
      ask(verb, session_id, steps, preview)
    end))
  end)
end

return M
